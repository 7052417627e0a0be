"""Predictors side by side on recorded jobs, relative to the last value. Axis: W workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._parallel import spread
from paceline.datasets import Trace
from paceline.eval.backtest import backtest
from paceline.eval.recorded_jobs import by_name
from paceline.predictors import LastValue, Predictor

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "last-value"

FEWEST_SCORED = 2
"""Fewest scored speeds of a worker for a meaningful ratio."""


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Errors of predictors relative to those of the last value: below 1 is better than the last value.

    Parameters
    ----------
    workers
        One row per predictor, trace and worker: ``predictor``, ``trace``, ``worker``, ``rmse`` and ``mae`` (ratios),
        ``coverage`` (share inside the 90 % interval).
    jobs
        One row per predictor and trace: ``predictor``, ``trace``, ``overhead`` (how much longer groups of 16 workers
        wait than if the speeds had been known), ``microseconds`` (of one call, to observe and to predict, for the
        whole fleet).
    left_out
        Workers without a ratio, as ``trace/worker``: the last value made no error on them, because their speed
        never changed, or they reported fewer than two speeds after the warm-up.
    fit_seconds
        How long fitting each predictor took, where known, in seconds.
    """

    workers: pd.DataFrame
    jobs: pd.DataFrame
    left_out: tuple[str, ...]
    fit_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def overall(self) -> pd.DataFrame:
        """One row per predictor over all workers of all traces, best first.

        ``rmse`` and ``mae`` are geometric means of the workers' ratios, ``worst`` is the highest RMSE ratio of a
        single worker and ``where`` that worker; ``coverage``, ``overhead`` and ``microseconds`` are means, of workers
        and of traces. ``fit seconds`` is there if it is known for any predictor.
        """
        table = _summed_up(self.workers, self.jobs, ["predictor"])
        if self.fit_seconds:
            table["fit seconds"] = table["predictor"].map(self.fit_seconds)
        return table

    @property
    def per_trace(self) -> pd.DataFrame:
        """One row per trace and predictor, with the same columns, best first within each trace."""
        return _summed_up(self.workers, self.jobs, ["trace", "predictor"])


def leaderboard(
    predictors: Mapping[str, Predictor],
    traces: Iterable[Trace],
    *,
    warmup: int = 50,
    fit_seconds: Mapping[str, float] | None = None,
) -> Leaderboard:
    """Backtest predictors on traces and relate their errors to those of the last value.

    Parameters
    ----------
    predictors
        The predictors by the names to show, fitted if they need fitting. The last value is added if it is missing.
    traces
        Recorded jobs, preferably ones that no predictor was fitted to.
    warmup
        Iterations at the start of each trace that are not scored.
    fit_seconds
        How long fitting each predictor took, in seconds, to show beside the scores.

    Raises
    ------
    ValueError
        If two traces have the same name, a warm-up leaves nothing of a trace, no worker is left to compare on, or
        another predictor has the name of the baseline.

    Examples
    --------
    >>> from paceline.predictors import EWMA, checks
    >>> board = leaderboard({"ewma": EWMA(smoothing=0.5)}, [checks.example_trace()])
    >>> board.overall[["predictor", "rmse"]].round(2)
        predictor  rmse
    0  last-value  1.00
    1        ewma  1.12
    """
    import pandas as pd

    predictors = {BASELINE: LastValue(), **predictors}
    if not isinstance(predictors[BASELINE], LastValue):
        raise ValueError(f"the name {BASELINE!r} belongs to the baseline, got {predictors[BASELINE]!r}: rename it")
    rows: list[dict[str, object]] = []
    jobs: list[dict[str, object]] = []
    left_out: list[str] = []
    scored = by_name(traces)
    calls = [(predictor, trace, warmup) for trace in scored.values() for predictor in predictors.values()]
    done = iter(spread(_scores, calls))
    for trace in scored.values():
        results = {name: next(done) for name in predictors}
        last = results[BASELINE]
        kept = (last.scored >= FEWEST_SCORED) & (np.nan_to_num(last.rmse) > 0)
        rows += [row for name, result in results.items() for row in _rows(name, result, last, trace, kept)]
        jobs += [_job(name, result, trace) for name, result in results.items() if kept.any()]
        left_out += [f"{trace.name}/{worker}" for worker in np.array(trace.workers)[~kept]]
    if not rows:
        raise ValueError("traces must hold at least one worker whose speed changes, got none to score")
    return Leaderboard(pd.DataFrame(rows), pd.DataFrame(jobs), tuple(left_out), dict(fit_seconds or {}))


@dataclass(frozen=True, eq=False)
class _Scores:
    """Scores of a backtest, computed by the process that ran it: it sends back these, and not every forecast."""

    rmse: Array
    mae: Array
    coverage: Array
    scored: Sizes
    overhead: float
    seconds: float


def _scores(predictor: Predictor, trace: Trace, warmup: int) -> _Scores:
    result = backtest(predictor, trace, warmup=warmup)
    return _Scores(
        result.rmse, result.mae, result.coverage, result.scored, overhead=result.overhead, seconds=result.seconds
    )


def _rows(
    name: str, result: _Scores, last: _Scores, trace: Trace, kept: NDArray[np.bool_]
) -> Iterator[dict[str, object]]:
    """Return one predictor's errors relative to the last value's, one row per worker kept."""
    rmse, mae = result.rmse[kept] / last.rmse[kept], result.mae[kept] / last.mae[kept]
    coverage = result.coverage[kept]
    for w, worker in enumerate(np.array(trace.workers)[kept]):
        about = {"predictor": name, "trace": trace.name, "worker": str(worker)}
        yield {**about, "rmse": rmse[w], "mae": mae[w], "coverage": coverage[w]}


def _job(name: str, result: _Scores, trace: Trace) -> dict[str, object]:
    return {
        "predictor": name,
        "trace": trace.name,
        "overhead": result.overhead,
        "microseconds": 1e6 * result.seconds,
    }


def _summed_up(workers: pd.DataFrame, jobs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    groups = workers.groupby(by)
    table = groups[["rmse", "mae"]].agg(_geometric_mean)
    worst = workers.loc[groups["rmse"].idxmax()].set_index(by)
    table["worst"] = worst["rmse"]
    table["where"] = worst["trace"] + "/" + worst["worker"] if "trace" not in by else worst["worker"]
    table["coverage"] = groups["coverage"].mean()
    table[["overhead", "microseconds"]] = jobs.groupby(by)[["overhead", "microseconds"]].mean()
    return table.reset_index().sort_values([*by[:-1], "rmse"], ignore_index=True)


def _geometric_mean(ratios: pd.Series[float]) -> float:
    with np.errstate(divide="ignore"):  # a predictor without any error has the ratio 0, and so has the mean
        return float(np.exp(np.log(ratios).mean()))
