"""ChangePoint: a slow average that starts again when the speed has jumped. Axes: W workers, D drivers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.report import FASTEST, SLOWEST

Array = NDArray[np.float64]

ALLOWANCE = 0.5
"""A speed within so many scales of the level is no evidence of a change."""

LARGEST_ERROR = 3.0
"""One speed counts for at most so many scales, so that a spike of any size is no change."""

SCALE_SMOOTHING, SMALLEST_SCALE = 0.05, 1e-3
"""Weight of the newest error in a worker's running scale, and the least scale in log speed."""


class ChangePoint(FleetPredictor):
    """Average of the log speed since the last change of level; a change is found by cumulative sums (CUSUM).

    On either side of the level a sum grows with every speed that lies beyond it and falls back to zero with those that
    do not. When one exceeds the threshold the level moves to the mean of the speeds that made it grow, and the average
    starts again from there: it is slow where the speed is steady, and a few iterations behind where it jumps.

    Parameters
    ----------
    smoothing
        Weight of the newest speed long after a change, in (0, 1]; the n-th speed after it weighs 1/n if that is more.
    threshold
        How much evidence makes a change, in scales of a worker's own error, above 0: less finds smaller changes sooner
        and takes noise for one more often.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Page, Continuous inspection schemes, Biometrika 41, 1954; the errors are bounded as Huber's.

    Examples
    --------
    A worker that rattles around 100 samples/s drops to half; two iterations later that is the level:

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

    def __init__(self, smoothing: float = 0.05, threshold: float = 4.0) -> None:
        if not 0.0 < smoothing <= 1.0:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        if not threshold > 0.0:
            raise ValueError(f"threshold must be above 0 scales, got {threshold}")
        super().__init__()
        self.smoothing = smoothing
        self.threshold = threshold

    def _fresh(self, count: int) -> dict[str, Array]:
        return {
            "level": np.full(count, np.nan),
            "scale": np.full(count, np.nan),
            "since": np.zeros(count),
            "evidence": np.zeros((count, 2)),
            "run_length": np.zeros((count, 2)),
            "run_mean": np.zeros((count, 2)),
        }

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        return np.asarray(np.clip(np.exp(self._rows["level"]), SLOWEST, FASTEST))

    def _learn(self, speed_W: Array, drivers_WD: Array) -> None:
        rows, value_W = self._rows, np.log(speed_W)
        first_W = np.isnan(rows["level"]) & np.isfinite(value_W)
        seen_W = np.isfinite(value_W) & ~first_W
        error_W = np.where(seen_W, value_W - rows["level"], 0.0)
        size_W = np.maximum(np.abs(error_W), SMALLEST_SCALE)
        scale_W = np.where(np.isnan(rows["scale"]), size_W, rows["scale"])
        bounded_W = np.clip(error_W / scale_W, -LARGEST_ERROR, LARGEST_ERROR)
        self._weigh(np.where(seen_W, bounded_W, np.nan), value_W)
        rows["since"] = rows["since"] + (seen_W | first_W)
        gain_W = np.maximum(self.smoothing, 1.0 / np.maximum(rows["since"], 1.0))
        moved_W = rows["level"] + gain_W * bounded_W * scale_W
        rows["level"] = np.where(first_W, value_W, moved_W)
        smoothed_W = scale_W + SCALE_SMOOTHING * (np.minimum(size_W, LARGEST_ERROR * scale_W) - scale_W)
        rows["scale"] = np.where(seen_W, smoothed_W, rows["scale"])
        self._restart()

    def _weigh(self, bounded_W: Array, value_W: Array) -> None:
        """Add this speed to the evidence above and below the level, and to the mean of the speeds that made it."""
        rows, seen_W1 = self._rows, np.isfinite(bounded_W)[:, None]
        sides_W2 = np.where(seen_W1, bounded_W[:, None] * np.array([1.0, -1.0]), 0.0)
        evidence_W2 = np.maximum(rows["evidence"] + sides_W2 - ALLOWANCE, 0.0)
        length_W2 = np.where(evidence_W2 > 0, rows["run_length"] + 1.0, 0.0)
        step_W2 = (np.nan_to_num(value_W)[:, None] - rows["run_mean"]) / np.maximum(length_W2, 1.0)
        rows["evidence"] = np.where(seen_W1, evidence_W2, rows["evidence"])
        rows["run_length"] = np.where(seen_W1, length_W2, rows["run_length"])
        rows["run_mean"] = np.where(seen_W1, rows["run_mean"] + step_W2, rows["run_mean"])

    def _restart(self) -> None:
        """Move the level of those with enough evidence to the mean of the speeds that gave it."""
        rows = self._rows
        side_W = rows["evidence"].argmax(axis=1)[:, None]
        most_W, mean_W, length_W = (
            np.take_along_axis(rows[name], side_W, axis=1)[:, 0] for name in ("evidence", "run_mean", "run_length")
        )
        changed_W = most_W > self.threshold
        rows["level"] = np.where(changed_W, mean_W, rows["level"])
        rows["since"] = np.where(changed_W, length_W, rows["since"])
        for name in ("evidence", "run_length", "run_mean"):
            rows[name] = np.where(changed_W[:, None], 0.0, rows[name])
