"""BarrierHead: forecasts for a job that waits for its slowest worker. Axes: W workers, F inputs of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from paceline.predictors import gated_memory
from paceline.predictors.delay_lines import situations
from paceline.predictors.gated import GatedNARX
from paceline.predictors.gated_memory import scale_of
from paceline.predictors.neural import BarrierExamples

if TYPE_CHECKING:
    from paceline.datasets import Trace

GROUP = 16
"""Workers in a random group."""

SLOWEST_AVERAGE = -1
"""The entry of the memory that a worker's speed is told against where workers of a group are compared."""


class BarrierHead(GatedNARX):
    """GatedNARX tuned for the slowest worker: the one that all others wait for at the barrier.

    When batches are sized by forecasts ``p`` and the speeds turn out to be ``v``, an iteration takes
    ``max(p / v) * sum(v) / sum(p)`` times as long as the best split would have. After the fit of GatedNARX this network
    is fitted on to that, over random groups of workers. It forecasts workers that may turn out slow below their mean:
    only ratios between workers matter, so take another predictor where the speed itself is wanted.

    Parameters
    ----------
    hidden, driver_lags, drivers, pretrained, online, training
        As of :class:`paceline.predictors.GatedNARX`. ``fit`` of a pretrained head only goes on with the groups.

    Notes
    -----
    The loss is ``logsumexp(beta * log(p / v)) / beta + log(sum(v) / sum(p))``, which is above the logarithm of that
    ratio and close to it for a large beta.

    Examples
    --------
    Two workers have the same median speed; the one that is sometimes slow gets less than half:

    >>> import numpy as np
    >>> from paceline.predictors import BarrierHead, Report
    >>> rng = np.random.default_rng(0)
    >>> model = BarrierHead(pretrained=True)
    >>> model.reset(["steady", "shaky"])
    >>> for _ in range(200):
    ...     model.observe(Report(samples=[64, 64], seconds=np.exp(rng.normal(0.0, [0.02, 0.3]))))
    >>> steady, shaky = model.predict().speed
    >>> bool(shaky < 0.95 * steady)
    True
    """

    shipped_as: ClassVar[str] = "barrier-head"

    def _fit_weights(self, traces: Sequence[Trace], closed_loop: int) -> None:
        from paceline.predictors.torch_fit import fit_barrier

        if not self.pretrained:
            super()._fit_weights(traces, closed_loop)
        rng = np.random.default_rng(self.training.seed)
        parts = [groups for trace in traces for groups in self._groups(trace, closed_loop, rng)]
        groups = BarrierExamples.joined(parts)
        if groups.validates.all() or not groups.validates.any():
            raise ValueError(f"traces of {[len(t) for t in traces]} iterations are too short to fit groups of {GROUP}")
        columns_DF = gated_memory.driver_columns(len(self.driver_names_), self.driver_lags)
        self.weights_ = fit_barrier(groups, columns_DF, self.training, self.weights_)

    def _groups(self, trace: Trace, closed_loop: int, rng: np.random.Generator) -> Iterator[BarrierExamples]:
        """Yield random groups of this trace's workers and iterations: those to learn from, and those that validate."""
        examples = self._barrier_examples(trace, closed_loop)
        for validates in (False, True):
            chosen = rng.permutation(np.flatnonzero(examples.validates == validates))
            full = len(chosen) // GROUP * GROUP
            if full:
                yield examples.grouped(chosen[:full].reshape(-1, GROUP))

    def _barrier_examples(self, trace: Trace, closed_loop: int) -> BarrierExamples:
        parts = []
        for k, rows, drivers_WD, log_speed_W in situations(self, trace, closed_loop):
            last_W, scale_W = rows["memory"][:, 0], scale_of(rows)
            target_W = (log_speed_W - last_W) / scale_W
            usable_W = np.isfinite(target_W) & np.isfinite(rows["scale"])
            inputs_WF, references_WR, unit_W = gated_memory.inputs_of(rows, *self._standard(rows, drivers_WD))
            held_out_W = np.full(len(usable_W), k >= (1.0 - self.training.validation) * len(trace))
            level_W = last_W - rows["memory"][:, SLOWEST_AVERAGE]
            part = (inputs_WF, target_W, held_out_W, references_WR, unit_W, scale_W, level_W)
            parts.append(BarrierExamples(*(column[usable_W] for column in part)))
        return BarrierExamples.joined(parts)
