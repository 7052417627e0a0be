"""BarrierHead: forecasts for a job that waits for its slowest worker. Axes: W workers, F inputs of the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from paceline._require import require
from paceline.predictors.fitting import Fitting, as_traces
from paceline.predictors.networks import gated_memory
from paceline.predictors.networks.delay_lines import situations
from paceline.predictors.networks.gated import GatedNARX
from paceline.predictors.networks.gated_memory import scale_of
from paceline.predictors.networks.neural import BarrierExamples
from paceline.predictors.networks.training_passes import collected, require_both
from paceline.predictors.networks.training_windows import Records, grouped

if TYPE_CHECKING:
    from paceline.datasets import Trace

GROUP = 16
"""Workers per random group."""


class BarrierHead(GatedNARX):
    """GatedNARX tuned for the slowest worker: the one that all others wait for at the barrier.

    When batches are sized by forecasts ``p`` and the speeds turn out to be ``v``, an iteration takes ``max(p / v) *
    sum(v) / sum(p)`` times as long as with the best split. After the fit of GatedNARX, training continues on this
    ratio, over random groups of workers. The result forecasts workers that may turn out slow below their mean: only
    ratios between workers matter, so take another predictor if you need the speed itself.

    Parameters
    ----------
    hidden, covariate_lags, covariates, pretrained, online, training
        As for :class:`paceline.predictors.GatedNARX`. With ``pretrained`` it starts as the network that comes with the
        library, and ``fit`` only continues training on groups.

    Notes
    -----
    The loss is ``logsumexp(beta * log(p / v)) / beta + log(sum(v) / sum(p))``: an upper bound of the logarithm of that
    ratio, close to it for a large beta.

    No fitted head comes with the library: on jobs unlike those it was fitted to it made workers wait longer than the
    last value. ``Policy(risk="auto")`` spares noisy workers with any predictor, and learns online how much.

    Examples
    --------
    Before it is tuned to groups it forecasts as the shipped network:

    >>> from paceline.predictors import BarrierHead, GatedNARX, Report
    >>> head, network = BarrierHead(pretrained=True), GatedNARX(pretrained=True)
    >>> for model in (head, network):
    ...     model.reset(["a"])
    ...     model.observe(Report(samples=[64], seconds=[0.5]))
    >>> bool(head.predict().speed == network.predict().speed)
    True
    """

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the network to all workers of these traces like GatedNARX, then tune it on groups. Needs torch."""
        # A head that was tuned before is only tuned further: fitting its mean again would undo the tuning.
        if not self.pretrained and not fitting.warm:
            super().fit_streamed(traces, fitting)
        return self._tuned(traces, fitting)

    def tune(self, traces: Iterable[Trace]) -> Self:
        """Continue training from the present weights, on random groups of workers. Needs torch."""
        return self._tuned(as_traces(traces), Fitting())

    def _tuned(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        require("torch", needed_by="BarrierHead.tune", extra="torch")
        from paceline.predictors.networks.torch_fit import fit_barrier

        if not self.weights_:
            raise ValueError("the head must have weights: call fit first")
        survey = fitting.surveyed(traces)
        windows = collected(traces, survey, fitting, partial(self._barrier_examples, fitting))
        groups = windows.mapped(self._grouped)
        require_both(groups, fitting, survey, f"groups of {GROUP}")
        columns_DF = gated_memory.covariate_columns(len(self.covariate_names_), self.covariate_lags)
        self.weights_ = fit_barrier(groups, columns_DF, self.training, fitting, self.weights_)
        self.reset(self.workers)
        return self

    def _grouped(self, records: Records) -> Records:
        """Return random groups of windows, ``[N, workers]`` of each column, that validate together or not at all."""
        rng = np.random.default_rng(self.training.seed)
        validates_N = records["validates"]
        chosen = [rng.permutation(np.flatnonzero(validates_N == held_out)) for held_out in (False, True)]
        rows_NG = np.concatenate([rows[: len(rows) // GROUP * GROUP].reshape(-1, GROUP) for rows in chosen])
        return grouped(records, rows_NG)

    def _barrier_examples(self, fitting: Fitting, trace: Trace) -> Iterator[BarrierExamples]:
        roles = list(fitting.roles(trace, self.training.validation))
        for k, rows, covariates_WD, log_speed_W in situations(self, trace):
            used_W, validates = roles[k]
            last_W, scale_W = rows["memory"][:, 0], scale_of(rows)
            target_W = (log_speed_W - last_W) / scale_W
            usable_W = used_W & np.isfinite(target_W) & np.isfinite(rows["scale"])
            inputs_WF, references_WR, unit_W = gated_memory.inputs_of(rows, *self._newly_scaled(rows, covariates_WD))
            # the slowest average is the last entry of the memory
            level_W = last_W - rows["memory"][:, -1]
            columns = (inputs_WF, target_W, np.full(len(usable_W), validates), references_WR, unit_W, scale_W, level_W)
            yield BarrierExamples.chosen(usable_W, *columns)
