"""FixedTimePredictor: the part of a worker's time that does not follow its batch, learned in front of any predictor.

A worker's time is ``fixed + x / v``, and both parts move. While sizes stay the same nobody can tell the two apart; each
change of sizes, as balancing makes them anyway, shows a little of it. Axes: W workers, H hypotheses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Mask, any_true
from paceline._curves import Curves
from paceline.predictors.nested import PredictorAdapter
from paceline.predictors.protocol import Forecast, Report

FIXED_SHARE_GRID = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
"""Hypotheses: this share of the time at the reference size is fixed, and contention slows both parts."""

FIXED_TIME_GRID = np.arange(0.1, 0.95, 0.1)
"""Hypotheses: a fixed time that no contention changes, as a share of the worker's first times."""

FIRST_REPORTS = 5
"""First reports whose median the constants are relative to."""

MAX_FIXED_SHARE = 0.98
"""A constant part is taken to be at most this share of a time."""


class FixedTimePredictor(PredictorAdapter):
    """Another predictor, held, behind one that learns how much of each worker's time does not follow its batch.

    Each change of a worker's size tests hypotheses about its fixed part: by how much should the time have changed since
    the last report? Workers that have not changed yet are taken to be like those that have. Reports are
    brought to one reference size, the mean batch of the first report, by the expected share before the inner predictor
    gets them, so that a change of size does not look like a change of speed. The forecast's ``speed`` is that at the
    reference size; times of other sizes come from its ``batch_time``.

    A worker needs 0.2 s besides 0.01 s per sample. When its batch halves and its time does not, that shows:

    >>> from paceline.predictors import LastValue, Report
    >>> model = FixedTimePredictor(LastValue())
    >>> model.reset(["a"])
    >>> for size in (40, 40, 40, 20, 40, 20):
    ...     model.observe(Report(samples=[size], seconds=[0.2 + 0.01 * size]))
    >>> curves = model.predict().curves
    >>> curves.intercept.round(1), curves.seconds(np.array([80])).round(1)
    (array([0.2]), array([1.]))
    """

    _cached_weights: tuple[Array, Array] | None = None

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        unseen = ("size", "seconds", "usual", "calm_size", "calm_seconds")
        none = ("still", "jump", "over", "lasted", "count", "passing", "reports")
        return {
            **{name: np.full(num_workers, np.nan) for name in unseen},
            **{name: np.zeros(num_workers) for name in none},
            "evidence": np.zeros((num_workers, len(FIXED_SHARE_GRID) + len(FIXED_TIME_GRID))),
            "noise": np.full(num_workers, 0.05**2),
            "missed": np.zeros((num_workers, 2)),
            "when": np.full((num_workers, 2), np.nan),
            "first": np.full((num_workers, FIRST_REPORTS), np.nan),
        }

    def initial_shared_state(self) -> dict[str, Array]:
        # samples that every report is brought to; fixed once known, because other ones would change all speeds
        return {"reference": np.full(1, np.nan)}

    def observe(self, report: Report) -> None:
        speed_W = report.speed
        if len(speed_W) != len(self.workers):
            self.predictor.observe(report)  # which refuses it
        size_W = np.where(np.isfinite(speed_W), np.asarray(report.samples, dtype=np.float64), np.nan)
        reference = float(self.shared_state["reference"][0])
        if np.isnan(reference) and np.isfinite(size_W).any():
            reference = float(np.nanmean(size_W))
        before = self.state
        with np.errstate(all="ignore"):
            seconds_W = size_W / speed_W
            self.state = rows = self._updated_worker_states(report, size_W, seconds_W, reference)
            at_reference_W = seconds_W / self._relative_seconds(seconds_W, size_W / reference)
            if any_true(rows["passing"]):
                expected_W = reference / self.predictor.predict(covariates=report.covariates).speed
                at_reference_W = np.where(rows["passing"] > 0, expected_W, at_reference_W)
        try:
            self.predictor.observe(replace(report, samples=np.full(len(size_W), reference), seconds=at_reference_W))
        except BaseException:
            self.state = before  # a refused report must change nothing
            raise
        self.shared_state["reference"] = np.array([reference])

    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        forecast = self.predictor.predict(covariates=covariates, horizon=horizon)
        size = float(np.nan_to_num(self.shared_state["reference"][0], nan=1.0))
        seconds_W = size / forecast.speed
        fixed_W = self._fixed_seconds(seconds_W)
        none_W, unlimited_W = np.zeros(len(fixed_W)), np.full(len(fixed_W), np.inf)
        curves = Curves(floor=none_W, slope=(seconds_W - fixed_W) / size, intercept=fixed_W, limit=unlimited_W)
        return replace(forecast, batch_time=curves)

    def _weights(self) -> Array:
        """Return the probability of each hypothesis, ``[W, H]``, cached until there is new evidence."""
        evidence_WH = self.state["evidence"]
        if self._cached_weights is None or self._cached_weights[0] is not evidence_WH:
            self._cached_weights = (evidence_WH, _hypothesis_weights(evidence_WH))
        return self._cached_weights[1]

    def _updated_worker_states(
        self, report: Report, size_W: Array, seconds_W: Array, reference_size: float
    ) -> dict[str, Array]:
        """Return what is known of each worker after this report."""
        before, rows = self.state, dict(self.state)
        change_W = np.log(seconds_W / before["seconds"])
        # sizes within 2% count as equal
        resized_W = np.abs(size_W / before["size"] - 1.0) >= 0.02
        moved = any_true(resized_W)
        noise_W, error_W = before["noise"], change_W
        if moved:
            rows["missed"], error_W, foreseen_W = self._forecast_errors(
                report, size_W, seconds_W, resized_W, reference_size
            )
        # a change of time counts for at most 3 of the noise, and the first noise for 2 changes
        square_W = np.minimum(np.square(error_W), 3.0**2 * noise_W)
        still_W = ~np.isnan(error_W)
        weight_W = np.maximum(0.05, 1.0 / (before["still"] + 2.0)) * still_W
        rows["noise"] = noise_W + weight_W * np.where(still_W, square_W - noise_W, 0.0)
        rows["still"] = before["still"] + still_W
        # what no hypothesis explains within this is a jump, and teaches nothing: a pause began or ended, or the speed
        # changed
        threshold_W = np.maximum(np.log(1.5), 5.0 * np.sqrt(noise_W))
        jump_W = np.abs(error_W) > threshold_W
        if moved:
            unexplained_WH = (change_W - foreseen_W)[:, None] - _expected_changes(before, "", size_W, reference_size)
            loss_WH = _hypothesis_losses(unexplained_WH, before["noise"])
            jump_W = np.where(resized_W, np.abs(unexplained_WH).min(axis=1) > threshold_W, jump_W)
        rows["count"], rows["passing"] = before["count"] + 1.0, np.zeros(len(size_W))
        if any_true(jump_W) or any_true(before["jump"]):
            unsure_W = before["jump"] > 0
            calm_W = np.where(unsure_W, np.log(seconds_W / before["calm_seconds"]), np.nan)
            off_WH = calm_W[:, None] - _expected_changes(before, "calm_", size_W, reference_size)
            if moved:
                both_WH = -np.logaddexp(-loss_WH, -_hypothesis_losses(off_WH, before["noise"]))
                loss_WH = np.where(unsure_W[:, None], both_WH, loss_WH)
            recovered_W = np.abs(off_WH).min(axis=1) <= threshold_W
            self._update_jumps(rows, size_W, jump_W & (error_W > 0), recovered_W, resized_W)
        if moved:
            loss_WH -= loss_WH.min(axis=1, keepdims=True)
            loss_WH[~resized_W | jump_W | np.isnan(loss_WH).any(axis=1)] = 0.0
            # evidence fades by 3% with each change of size: about 30 changes count
            rows["evidence"] = np.where(resized_W, 0.97, 1.0)[:, None] * before["evidence"] + loss_WH
        seen_W = ~np.isnan(seconds_W)
        rows["size"] = np.where(seen_W, size_W, before["size"])
        rows["seconds"] = np.where(seen_W, seconds_W, before["seconds"])
        if np.minimum.reduce(before["reports"], initial=FIRST_REPORTS) < FIRST_REPORTS:
            first_W = seconds_W * reference_size / size_W
            young_W = (rows["reports"] < FIRST_REPORTS) & np.isfinite(first_W)
            if any_true(young_W):
                rows |= {name: rows[name].copy() for name in ("first", "reports", "usual")}
                rows["first"][young_W, rows["reports"][young_W].astype(int)] = first_W[young_W]
                rows["reports"][young_W] += 1
                rows["usual"][young_W] = np.nanmedian(rows["first"][young_W], axis=1)
        return rows

    def _forecast_errors(
        self, report: Report, size_W: Array, seconds_W: Array, resized_W: Mask, reference_size: float
    ) -> tuple[Array, Array, Array]:
        """Return smoothed squared errors of two forecasts, the error of the better one, and the change it foresaw.

        A size changes because a change of speed is foreseen, which the last time alone would take for its effect. So
        times are compared with the inner predictor's own forecast, where that has been closer.
        """
        rows = self.state
        now_W = seconds_W / self._relative_seconds(seconds_W, size_W / reference_size)
        last_W = rows["seconds"] / self._relative_seconds(rows["seconds"], rows["size"] / reference_size)
        forecast_W = reference_size / self.predictor.predict(covariates=report.covariates).speed
        error_W2 = np.log(now_W[:, None] / np.stack([last_W, forecast_W], axis=1))
        bounded_W2 = np.minimum(np.square(error_W2), 0.5**2)
        known_W = resized_W & ~np.isnan(error_W2[:, 0])
        moved_W2 = np.where(known_W[:, None], bounded_W2 - rows["missed"], 0.0)
        missed_W2 = rows["missed"] + 0.1 * known_W[:, None] * moved_W2
        follow_W = known_W & (rows["missed"][:, 1] <= rows["missed"][:, 0])
        foreseen_W = np.where(follow_W, np.log(forecast_W / last_W), 0.0)
        return missed_W2, np.where(follow_W, error_W2[:, 1], error_W2[:, 0]), foreseen_W

    def _update_jumps(
        self, worker_states: dict[str, Array], size_W: Array, jumped_up_W: Mask, recovered_W: Mask, resized_W: Mask
    ) -> None:
        """Note jumps of time, and whether those before were over at once, in place.

        A fall of those whose size has changed (``resized_W``) says nothing about the jump.
        """
        before = self.state
        first_W = (before["jump"] == 1) & ~resized_W & np.isfinite(size_W)
        fading_W = np.where(first_W, 0.95, 1.0)  # earlier jumps count less at each further one
        worker_states["over"] = before["over"] * fading_W + (first_W & recovered_W)
        worker_states["lasted"] = before["lasted"] * fading_W + (first_W & ~recovered_W)
        # within 3 reports after a jump, it may turn out to have been a pause
        after_W = np.where(recovered_W | (before["jump"] >= 3), 0.0, before["jump"] + (before["jump"] > 0))
        begins_W = jumped_up_W & (before["jump"] == 0)
        over, lasted = np.add.reduce(worker_states["over"]), np.add.reduce(worker_states["lasted"])
        since_W2 = np.stack([before["count"] - before["when"][:, 0], before["when"][:, 0] - before["when"][:, 1]], 1)
        periodic_W = since_W2[:, 0] == since_W2[:, 1]  # what returns is left to predictors that foresee it
        # Where four of five jumps were over at the next report, counted with one of each kind beforehand, a jump is
        # hidden from the inner predictor until it lasts.
        worker_states["passing"] = 1.0 * (begins_W & ~periodic_W & bool((over + 1.0) / (over + lasted + 2.0) >= 0.8))
        newest_W2 = np.stack([before["count"], before["when"][:, 0]], axis=1)
        worker_states["when"] = np.where(begins_W[:, None], newest_W2, before["when"])
        worker_states["jump"] = np.where(begins_W, 1.0, after_W)
        worker_states["calm_size"] = np.where(begins_W, before["size"], before["calm_size"])
        worker_states["calm_seconds"] = np.where(begins_W, before["seconds"], before["calm_seconds"])

    def _relative_seconds(self, seconds_W: Array, relative_W: Array) -> Array:
        """Return how many times as long as a batch of the reference size these took, ``[W]``."""
        weights_WH = self._weights()
        seconds_W1 = seconds_W[:, None]
        fixed_WH = np.minimum(FIXED_TIME_GRID * self.state["usual"][:, None], MAX_FIXED_SHARE * seconds_W1)
        share_WH = fixed_WH / (fixed_WH + (seconds_W1 - fixed_WH) / relative_W[:, None])
        of_constants_W = np.add.reduce(weights_WH[:, len(FIXED_SHARE_GRID) :] * share_WH, axis=1)
        share_W = weights_WH[:, : len(FIXED_SHARE_GRID)] @ FIXED_SHARE_GRID + of_constants_W
        return np.asarray(share_W + (1.0 - share_W) * relative_W)

    def _fixed_seconds(self, seconds_W: Array) -> Array:
        """Return the fixed part of times at the reference size, ``[W]``."""
        weights_WH, expected_W = self._weights(), self.state["usual"]
        expected_W = np.where(np.isnan(expected_W), seconds_W, expected_W)
        fixed_WH = np.minimum(FIXED_TIME_GRID * expected_W[:, None], MAX_FIXED_SHARE * seconds_W[:, None])
        of_constants_W = np.add.reduce(weights_WH[:, len(FIXED_SHARE_GRID) :] * fixed_WH, axis=1)
        return np.asarray(weights_WH[:, : len(FIXED_SHARE_GRID)] @ FIXED_SHARE_GRID * seconds_W + of_constants_W)


# The prior falls as exp(-2.5 * share); that nothing is fixed is four times as likely as that, and a constant part half
# as likely. Of 34 curves of training jobs on five GPUs (public ones of Gavel, and this project's own of an H200) a
# quarter have nothing fixed in the upper half of their batches, half of them between 0.1 and 0.4, the others up to 0.8.
PRIOR_H: Array = np.concatenate([np.exp(-2.5 * FIXED_SHARE_GRID), 0.5 * np.exp(-2.5 * FIXED_TIME_GRID)])
PRIOR_H[0] *= 4.0
PRIOR_H /= PRIOR_H.sum()


def _hypothesis_weights(loss_WH: Array) -> Array:
    """Return the probability of each hypothesis, ``[W, H]``: of the evidence, and of what the whole fleet shows.

    The fleet's distribution counts each worker by how much is known of it, and the prior as one more worker
    (expectation maximization): workers that all show the same lend it to others, workers that differ do not.
    """
    likelihood_WH = np.exp(np.minimum.reduce(loss_WH, axis=1, keepdims=True) - loss_WH)
    known_W, fleet_H = 1.0 - likelihood_WH @ PRIOR_H, PRIOR_H
    # 3 steps from the prior to the fleet's distribution of shares
    for step in range(4):
        weight_WH = fleet_H * likelihood_WH
        weight_WH /= np.add.reduce(weight_WH, axis=1, keepdims=True)
        if step < 3:
            # the prior counts as one fully known worker
            fleet_H = (PRIOR_H + known_W @ weight_WH) / (1.0 + known_W.sum())
    return np.asarray(weight_WH)


def _expected_changes(
    worker_states: Mapping[str, Array], key_prefix: str, size_W: Array, reference_size: float
) -> Array:
    """Return by how much each hypothesis expects the log time to have changed since the base, ``[W, H]``."""
    size_W1, seconds_W1 = (worker_states[key_prefix + name][:, None] for name in ("size", "seconds"))
    now_W1, share = size_W[:, None], FIXED_SHARE_GRID
    by_share = np.log(
        (share + (1 - share) * now_W1 / reference_size) / (share + (1 - share) * size_W1 / reference_size)
    )
    part = np.minimum(FIXED_TIME_GRID * worker_states["usual"][:, None] / seconds_W1, MAX_FIXED_SHARE)
    return np.concatenate([by_share, np.log(part + (1.0 - part) * now_W1 / size_W1)], axis=1)


def _hypothesis_losses(error_WH: Array, noise_W: Array) -> Array:
    """Return how badly each hypothesis explains a time, by its error in log time, ``[W, H]``."""
    # Student's t with 4 degrees of freedom: an outlier is not impossible
    return np.asarray((4.0 + 1) / 2 * np.log1p(np.square(error_WH) / (4.0 * (noise_W + 0.01**2))[:, None]))
