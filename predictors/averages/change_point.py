"""ChangePoint: a slow average that starts again when the speed has jumped. Axes: W workers, D covariates."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fleet import FleetPredictor

LARGEST_ERROR = 3.0
"""One speed counts for at most this many scales, so that a spike of any size is not a change."""

SCALE_SMOOTHING, SMALLEST_SCALE = 0.05, 1e-3
"""Weight of the newest error in a worker's running scale, and the least scale in log speed."""

SIDES = np.array([1.0, -1.0])
"""Evidence of a higher level, and of a lower one."""

RUN = ("evidence", "run_length", "run_sum", "run_extreme")
"""State of the run of speeds that gave evidence."""


class ChangePoint(FleetPredictor):
    """Average of the log speed since the last change of level; a change is found by cumulative sums (CUSUM).

    On each side of the level, a sum grows with every speed beyond the level and falls back towards zero with the
    others. When a sum exceeds the threshold, the average starts again from the speeds that made it grow, without the
    most extreme one. So it is slow where the speed is steady, and only a few iterations late where the speed jumps.

    Parameters
    ----------
    smoothing
        Weight of the newest speed long after a change, in (0, 1]; the n-th speed after it counts 1/n if that is more.
    threshold
        How much evidence makes a change, in scales of a worker's own error, above 0. A lower threshold finds smaller
        changes sooner, and mistakes noise for a change more often.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Page, Continuous inspection schemes, Biometrika 41, 1954; errors are bounded as in Huber's loss.

    Examples
    --------
    A worker around 100 samples/s drops to half its speed; two iterations later the level has followed:

    >>> from paceline.predictors import ChangePoint, Report
    >>> model = ChangePoint()
    >>> model.reset(["a"])
    >>> for k in range(60):
    ...     model.observe(Report(samples=[100], seconds=[0.99 if k % 2 else 1.01]))
    >>> for _ in range(2):
    ...     model.observe(Report(samples=[100], seconds=[2.0]))
    >>> model.predict().speed.round()
    array([50.])
    """

    def __init__(self, smoothing: float = 0.05, threshold: float = 3.0) -> None:
        if not 0.0 < smoothing <= 1.0:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        if not threshold > 0.0:
            raise ValueError(f"threshold must be above 0 scales, got {threshold}")
        super().__init__()
        self.smoothing = smoothing
        self.threshold = threshold

    def initial_state(self, count: int) -> dict[str, Array]:
        return {
            "level": np.full(count, np.nan),
            "scale": np.full(count, np.nan),
            "since": np.zeros(count),
            "evidence": np.zeros((count, 2)),
            "run_length": np.zeros((count, 2)),
            "run_sum": np.zeros((count, 2)),
            "run_extreme": np.zeros((count, 2)),
        }

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return np.exp(self.state["level"])

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        rows, value_W = self.state, np.log(speed_W)
        first_W = np.isnan(rows["level"]) & np.isfinite(value_W)
        seen_W = np.isfinite(value_W) & ~first_W
        error_W = np.where(seen_W, value_W - rows["level"], 0.0)
        size_W = np.maximum(np.abs(error_W), SMALLEST_SCALE)
        scale_W = np.where(np.isnan(rows["scale"]), size_W, rows["scale"])
        bounded_W = np.clip(error_W / scale_W, -LARGEST_ERROR, LARGEST_ERROR)
        self._weight(bounded_W, np.where(seen_W, value_W, np.nan))
        rows["since"] = rows["since"] + (seen_W | first_W)
        gain_W = np.maximum(self.smoothing, 1.0 / np.maximum(rows["since"], 1.0))
        moved_W = rows["level"] + gain_W * bounded_W * scale_W
        rows["level"] = np.where(first_W, value_W, moved_W)
        smoothed_W = scale_W + SCALE_SMOOTHING * (np.minimum(size_W, LARGEST_ERROR * scale_W) - scale_W)
        rows["scale"] = np.where(seen_W, smoothed_W, rows["scale"])
        self._restart()

    def _weight(self, bounded_W: Array, value_W: Array) -> None:
        """Add this speed to the evidence above and below the level, and to the run of speeds behind that evidence."""
        rows, seen_W1 = self.state, np.isfinite(value_W)[:, None]
        # an error within half a scale is not evidence of a change
        evidence_W2 = np.maximum(rows["evidence"] + bounded_W[:, None] * SIDES - 0.5, 0.0)
        runs_W2 = evidence_W2 > 0
        begins_W2 = rows["run_length"] == 0
        farther_W2 = np.where(begins_W2, -np.inf, rows["run_extreme"] * SIDES)
        moved = {
            "evidence": evidence_W2,
            "run_length": np.where(runs_W2, rows["run_length"] + 1.0, 0.0),
            "run_sum": np.where(runs_W2, rows["run_sum"] + value_W[:, None], 0.0),
            "run_extreme": np.where(runs_W2, np.maximum(farther_W2, value_W[:, None] * SIDES) * SIDES, 0.0),
        }
        for name, moved_W2 in moved.items():
            rows[name] = np.where(seen_W1, moved_W2, rows[name])

    def _restart(self) -> None:
        """Move the level to the mean of its run, where evidence suffices, without the extreme: it may be a spike."""
        rows = self.state
        side_W1 = rows["evidence"].argmax(axis=1)[:, None]
        evidence_W, length_W, sum_W, extreme_W = (np.take_along_axis(rows[name], side_W1, axis=1)[:, 0] for name in RUN)
        changed_W = evidence_W > self.threshold
        others_W = np.maximum(length_W - 1.0, 1.0)
        level_W = np.where(length_W > 1.0, sum_W - extreme_W, sum_W) / others_W
        rows["level"] = np.where(changed_W, level_W, rows["level"])
        rows["since"] = np.where(changed_W, others_W, rows["since"])
        for name in RUN:
            rows[name] = np.where(changed_W[:, None], 0.0, rows[name])
