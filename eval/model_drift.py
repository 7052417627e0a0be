"""Drift of a model, measured on a newer trace: speeds unlike those it was fitted on, and whether a refit would help.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.datasets import Trace
from paceline.eval.backtest import backtest
from paceline.predictors import FleetPredictor, LastValue
from paceline.predictors.reference import MANY, changes
from paceline.training.fit import fit

FITTED_SHARE = 0.6
"""Share of the trace, at its start, that the trial refit sees; it is measured on the rest."""

LEAST_GAIN = 0.02
"""Relative fall of the error for which a refit is recommended: less is within what two halves of a job differ by."""

FEWEST = 40
"""Iterations below which nothing is measured."""


@dataclass(frozen=True)
class Drift:
    """Drift and accuracy of a model on a newer trace.

    Parameters
    ----------
    trace
        Its name.
    early, late
        The model's RMSE over the last value's, on the first part of the trace and on the rest: geometric means over
        workers.
    refitted
        The same on the rest, after a trial refit to the first part that starts from the model; NaN if the model learns
        nothing from traces.
    unknown_changes
        Share of the speeds' changes that are farther than 5 deviations from what the model was fitted on; NaN if it
        does not know that: it learns nothing from traces, or its file was written before models kept it.
    unknown_covariates
        The same of covariates' samples; NaN also if it reads none.
    sentence
        What this means.
    """

    trace: str
    early: float
    late: float
    refitted: float
    unknown_changes: float
    unknown_covariates: float
    sentence: str


def check_drift(model: FleetPredictor, trace: Trace) -> Drift:
    """Measure a model on a trace that is newer than its fit, and try a refit.

    Raises
    ------
    ValueError
        If the trace is shorter than 40 iterations, or no worker's speed changes.

    Examples
    --------
    >>> from paceline.predictors import EWMA, checks
    >>> check_drift(EWMA(smoothing=0.5), checks.example_trace()).sentence
    'the model is worse than the last value; it learns nothing from traces, so take another one'
    """
    if len(trace) < FEWEST:
        raise ValueError(f"trace {trace.name!r} must have at least {FEWEST} iterations, got {len(trace)}")
    middle = int(FITTED_SHARE * len(trace))
    early = _error(model, trace, 10, middle)
    late = _error(model, trace, middle, len(trace))
    refitted = float("nan")
    if model.learns_from_traces:
        refitted = _error(fit(model, [trace.select(slice(middle))], start=model), trace, middle, len(trace))
    left = _unknown_changes(model, trace), _unknown_covariates(model, trace)
    return Drift(trace.name, early, late, refitted, *left, _sentence(late, refitted, *left))


def _error(model: FleetPredictor, trace: Trace, begin: int, end: int) -> float:
    """Return the model's RMSE over the last value's between two iterations, the geometric mean over workers."""
    part = trace.select(slice(end))
    mine, last = (backtest(predictor, part, warmup=begin).rmse for predictor in (model, LastValue()))
    told = np.isfinite(mine) & (np.nan_to_num(last) > 0) & (mine > 0)
    if not told.any():
        raise ValueError(f"trace {trace.name!r} has no worker whose speed changes: there is nothing to measure")
    return float(np.exp(np.mean(np.log(mine[told] / last[told]))))


def _unknown_changes(model: FleetPredictor, trace: Trace) -> float:
    if model.reference_ is None:
        return float("nan")
    change_TW = changes(trace.speed)
    known = np.isfinite(change_TW)
    return float(model.reference_.unknown_changes(change_TW)[known].mean()) if known.any() else float("nan")


def _unknown_covariates(model: FleetPredictor, trace: Trace) -> float:
    if model.reference_ is None or not model.covariate_names:
        return float("nan")
    covariates_TWD = trace.covariates_named(model.covariate_names)
    assert covariates_TWD is not None, "the model reads covariates"
    known = np.isfinite(covariates_TWD)
    return float(model.reference_.unknown_covariates(covariates_TWD)[known].mean()) if known.any() else float("nan")


def _sentence(late: float, refitted: float, changed: float, covariates: float) -> str:
    standing = "is worse than" if late > 1.0 else "still beats"
    said = f"the model {standing} the last value"
    for what, unknown in (("changes of speed", changed), ("covariates' samples", covariates)):
        if unknown > MANY:
            said += f", and {unknown:.0%} of the {what} are far from those it was fitted on"
    if np.isnan(refitted):
        advice = "take another one" if late > 1.0 else "keep it"
        return f"{said}; it learns nothing from traces, so {advice}"
    change = refitted / late - 1.0
    if change <= -LEAST_GAIN:
        return f"{said}; a refit would help: it lowers the error by {-change:.0%}"
    return f"{said}; a refit would not help: it changes the error by {change:+.1%}"
