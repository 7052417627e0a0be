"""Choice of how far to follow forecasts, by the time that each choice would have taken. Axes: W workers, C choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._curves import Curves
from paceline.predictors.protocol import Forecast, Report
from paceline.solver.split import log_safety_factor

TRUST_AND_SAFETY_C2 = np.array(
    [[1.0, 0.0], [1.0, -0.5], [1.0, -1.0], [0.5, 0.0], [0.5, -0.25], [0.5, -0.5], [0.0, 0.0]]
)
"""Choices: factors of the differences between log speeds, and of :func:`paceline.solver.split.log_safety_factor`.

A choice trusts all, half or none of the differences (none is equal batches), and spares noisy workers not at all,
by half or fully."""


class Hedging:
    """Follows the choice whose sizes would recently have made the workers wait least.

    Every iteration shows what each choice would have cost, whichever was used: a report gives one point of each
    worker's curve, and the forecast, ``horizon`` iterations ahead, its shape. So nothing has to be tried out, and
    forecasts that are only noise end in equal batches. This is the follow-the-leader rule over a few experts, with a
    fading memory.
    """

    def __init__(self, global_batch: int, horizon: int = 1) -> None:
        self.global_batch = global_batch
        self.horizon = horizon
        self.choice = 0
        """The choice that would have cost least; 0, the forecast itself, until something is known."""
        self._cost_C = np.zeros(len(TRUST_AND_SAFETY_C2))
        self._pending_sizes: list[Array] = []

    def update(self, report: Report, forecast: Forecast) -> None:
        """Learn what each choice would have cost in the reported iteration; take the next forecast."""
        if len(self._pending_sizes) == self.horizon:
            self._update_costs(self._pending_sizes.pop(0), report, forecast.curves)
        self._pending_sizes.append(self._choice_sizes(forecast))

    def slowdown_factors(self, forecast: Forecast) -> Array:
        """Return how many times as long as forecast each worker is planned to take, ``[W]``.

        All together are planned to be as fast as forecast.
        """
        equal_W = self._equal_batch_seconds(forecast)
        accepted, added = TRUST_AND_SAFETY_C2[self.choice]
        planned_W = equal_W**accepted * np.exp(-added * log_safety_factor(forecast.spread))
        together = np.add.reduce(1.0 / planned_W) / np.add.reduce(1.0 / equal_W)
        return np.asarray(planned_W / equal_W * together)

    def clear_plans(self) -> None:
        """Drop the plans that were not compared yet, because the fleet has changed; the learned costs stay."""
        self._pending_sizes = []

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return costs, choice, and the plans that were not compared yet."""
        return {"cost": self._cost_C.copy(), "choice": np.array(self.choice), "sizes": np.array(self._pending_sizes)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume."""
        self._cost_C = np.array(state["cost"])
        self.choice = int(state["choice"])
        self._pending_sizes = list(np.array(state["sizes"]))

    def _equal_batch_seconds(self, forecast: Forecast) -> Array:
        return forecast.curves.batch_seconds(np.full(len(forecast.speed), self.global_batch / len(forecast.speed)))

    def _choice_sizes(self, forecast: Forecast) -> Array:
        """Return the sizes of each choice, ``[C, W]``, in fractions of samples.

        The curves are stretched until their times for an equal batch differ as far as the choice accepts.
        """
        equal_W, size = self._equal_batch_seconds(forecast), self.global_batch / len(forecast.speed)
        log_equal_W = np.log(equal_W)
        planned_CW = TRUST_AND_SAFETY_C2 @ np.array([log_equal_W, -log_safety_factor(forecast.spread)])
        return fractional_sizes(np.exp(planned_CW - planned_CW[:, :1]), forecast.curves.intercept / equal_W, size)

    def _update_costs(self, size_CW: Array, report: Report, curves: Curves) -> None:
        """Add each choice's cost in the reported iteration: its log time relative to the best choice."""
        ran_W = np.asarray(report.samples, dtype=np.float64)
        seconds_W = np.asarray(report.seconds, dtype=np.float64)
        if not report.complete:
            known_W = np.isfinite(report.speed)
            if known_W.sum() < 2:
                return
            curves = Curves(*(line[known_W] for line in (curves.floor, curves.slope, curves.intercept, curves.limit)))
            ran_W, seconds_W, size_CW = ran_W[known_W], seconds_W[known_W], size_CW[:, known_W]
            size_CW = size_CW * (np.add.reduce(ran_W) / np.add.reduce(size_CW, axis=1))[:, None]
        elif len(ran_W) < 2:
            return
        expected_W = curves.batch_seconds(ran_W)
        # A time of more than twice the forecast is a pause or a jump: the excess does not depend on the size.
        bounded_W = np.minimum(seconds_W, 2.0 * expected_W)
        seconds_CW = curves.batch_seconds(size_CW) * (bounded_W / expected_W) + (seconds_W - bounded_W)
        seconds_C = np.maximum.reduce(seconds_CW, axis=1)
        wait_C = np.log(seconds_C / np.minimum.reduce(seconds_C))
        # the last 50 iterations count; one counts as at most 3 in log time, as a single stall is no evidence
        self._cost_C = 0.98 * self._cost_C + np.minimum(wait_C, 3.0)
        # The forecast itself is followed until another choice would have saved a tenth of an iteration in the last 50
        # or so. Less is luck.
        self.choice = int(np.argmin(self._cost_C + np.where(np.arange(len(self._cost_C)) > 0, 0.1, 0.0)))


def fractional_sizes(relative_seconds_CW: Array, fixed_share_W: Array, mean_size: float) -> Array:
    """Return sizes with which all workers end together, ``[C, W]``, in fractions of samples.

    A batch of ``mean_size`` takes ``relative_seconds_CW``, of which the share ``fixed_share_W`` is fixed. No worker
    gets less than a sample, or than the mean size if that is smaller.
    """
    workers, smallest = relative_seconds_CW.shape[1], min(1.0, mean_size)
    start_CW = relative_seconds_CW * fixed_share_W
    # Least time per sample, relative to the time of an equal batch: a level curve has no size for a given end.
    rate_CW = mean_size / np.maximum(relative_seconds_CW - start_CW, 1e-3 * relative_seconds_CW)
    free_CW, room_C = np.ones_like(rate_CW), np.full(len(rate_CW), mean_size * workers)
    for _ in range(3):  # a worker that would get less than the least gets that, and the others share the rest
        rate_C = np.add.reduce(free_CW * rate_CW, axis=1)
        together_C = (room_C + np.add.reduce(free_CW * rate_CW * start_CW, axis=1)) / rate_C
        size_CW = np.where(free_CW > 0, (together_C[:, None] - start_CW) * rate_CW, smallest)
        if np.minimum.reduce(size_CW, axis=None) >= smallest:
            break
        free_CW = np.where(size_CW > smallest, free_CW, 0.0)
        room_C = mean_size * workers - smallest * (workers - np.add.reduce(free_CW, axis=1))
    return np.asarray(np.maximum(size_CW, smallest))
