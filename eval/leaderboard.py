"""Predictors side by side on recorded jobs, relative to the last value. Axis: W workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._runtime import map_calls
from paceline.datasets import Trace
from paceline.eval.backtest import backtest, traces_by_name
from paceline.eval.significance import ErrorComparison, ErrorEstimates, compare_over_jobs, squared_error_estimates
from paceline.predictors import LastValue, Predictor

if TYPE_CHECKING:
    import pandas as pd

BASELINE_NAME = "last-value"


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Errors of predictors relative to those of the last value: below 1 is better than the last value.

    Parameters
    ----------
    workers
        One row per predictor, trace and worker: ``predictor``, ``trace``, ``worker``, ``rmse`` and ``mae`` (ratios),
        ``coverage`` (share inside the 90% interval).
    jobs
        One row per predictor and trace: ``predictor``, ``trace``, ``overhead`` (how much longer groups of 16 workers
        wait than if the speeds had been known), ``microseconds`` (of one call, to observe and to predict, for the
        whole fleet).
    left_out
        Workers without a ratio, as ``trace/worker``: the last value made no error on them, because their speed
        never changed, or they reported fewer than two speeds after the warm-up.
    errors
        Squared errors of each predictor on each trace, by predictor and trace.
    """

    workers: pd.DataFrame
    jobs: pd.DataFrame
    left_out: tuple[str, ...]
    errors: Mapping[str, Mapping[str, ErrorEstimates]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        overall = self.overall
        ranking = ", ".join(
            f"{name} {rmse:.3f}" for name, rmse in zip(overall["predictor"], overall["rmse"], strict=True)
        )
        return f"Leaderboard(traces={self.jobs['trace'].nunique()}, rmse over the last value: {ranking})"

    @property
    def overall(self) -> pd.DataFrame:
        """One row per predictor over all workers of all traces, best first.

        ``rmse`` and ``mae`` are geometric means of the workers' ratios, ``worst`` is the highest RMSE ratio of a
        single worker and ``where`` that worker; ``coverage``, ``overhead`` and ``microseconds`` are means, of workers
        and of traces.
        """
        return _summarize(self.workers, self.jobs, ["predictor"])

    @property
    def per_trace(self) -> pd.DataFrame:
        """One row per trace and predictor, with the same columns, best first within each trace."""
        return _summarize(self.workers, self.jobs, ["trace", "predictor"])

    def compare(self, predictor: str, other: str = BASELINE_NAME, *, num_compared: int = 2) -> ErrorComparison:
        """Return one predictor's RMSE over another's, with its interval, and whether it is significant.

        ``num_compared`` is the number of predictors of which the two were picked as the best and another. Every worker
        counts as much, so a job counts by its workers.
        """
        mine = self.workers[self.workers["predictor"] == BASELINE_NAME]
        sizes = {str(trace): len(rows) for trace, rows in mine.groupby("trace")}  # workers that count
        differences = [self.errors[predictor][trace] - self.errors[other][trace] for trace in sizes]
        weights = [size / sum(sizes.values()) for size in sizes.values()]
        return compare_over_jobs(differences, weights, num_compared=num_compared)

    def leads(self) -> pd.DataFrame:
        """One row per predictor, best first: whether it is better than the last value, and than the best.

        The ratio to the last value, its 95% interval (``low``, ``high``) and ``p``; in words ``than last-value``:
        better, worse or not significant; and ``than the best``, of all predictors here, the same.
        """
        import pandas as pd

        names = list(self.overall["predictor"])
        rows = []
        for name in names:
            over = self.compare(name)
            behind = self.compare(name, names[0], num_compared=len(names))
            row = {"predictor": name, "rmse": over.ratio, "low": over.low, "high": over.high, "p": over.p}
            than = {"than last-value": "" if name == BASELINE_NAME else over.verdict}
            than["than the best"] = "the best" if name == names[0] else behind.verdict
            rows.append({**row, **than})
        return pd.DataFrame(rows)


def leaderboard(predictors: Mapping[str, Predictor], traces: Iterable[Trace], *, warmup: int = 50) -> Leaderboard:
    """Backtest predictors on traces and relate their errors to those of the last value.

    Parameters
    ----------
    predictors
        The predictors by the names to show, fitted if they need fitting. The last value is added if it is missing.
    traces
        Recorded jobs, preferably ones that no predictor was fitted to.
    warmup
        Iterations at the start of each trace that are not scored.

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

    predictors = {BASELINE_NAME: LastValue(), **predictors}
    if not isinstance(predictors[BASELINE_NAME], LastValue):
        raise ValueError(f"the name {BASELINE_NAME!r} is the baseline's, got {predictors[BASELINE_NAME]!r}: rename it")
    scored = traces_by_name(traces)
    board: list[dict[str, object]] = []
    jobs: list[dict[str, object]] = []
    errors: dict[str, dict[str, ErrorEstimates]] = {}
    min_scored = 2  # speeds of a worker for a meaningful ratio
    calls = []
    left_out: list[str] = []
    for trace in scored.values():
        last = backtest(predictors[BASELINE_NAME], trace, warmup=warmup)
        is_included_W = (last.num_scored >= min_scored) & (np.nan_to_num(last.rmse) > 0)
        left_out += [f"{trace.name}/{trace.workers[int(w)]}" for w in np.flatnonzero(~is_included_W)]
        if is_included_W.any():
            baseline_errors = (last.rmse[is_included_W], last.mae[is_included_W])
            calls += [(name, one, trace, warmup, baseline_errors, is_included_W) for name, one in predictors.items()]
    for rows, job, figures in map_calls(_score_predictor, calls):
        board += rows
        jobs.append(job)
        errors.setdefault(job["predictor"], {})[job["trace"]] = figures
    if not board:
        longest = max(map(len, scored.values()), default=0)
        raise ValueError(
            f"traces must hold at least one worker whose speed changes, with {min_scored} speeds after the warm-up of "
            f"{warmup} iterations, got none in at most {longest}: use other traces, or a smaller warmup (--warmup on "
            "the command line)"
        )
    return Leaderboard(pd.DataFrame(board), pd.DataFrame(jobs), tuple(left_out), errors=errors)


def _score_predictor(
    predictor_name: str,
    predictor: Predictor,
    trace: Trace,
    warmup: int,
    baseline_errors: tuple[Array, Array],
    is_included_W: NDArray[np.bool_],
) -> tuple[list[dict[str, object]], dict[str, Any], ErrorEstimates]:
    """Return a row for each worker that counts, one for the job, and the figures of the errors, not every forecast."""
    result, (rmse_W, mae_W) = backtest(predictor, trace, warmup=warmup), baseline_errors
    error_TW, about = result.error[:, is_included_W], {"predictor": predictor_name, "trace": trace.name}
    columns = {
        "worker": np.array(trace.workers)[is_included_W].tolist(),
        "rmse": result.rmse[is_included_W] / rmse_W,
        "mae": result.mae[is_included_W] / mae_W,
        "coverage": result.coverage[is_included_W],
    }
    rows = [about | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    job = about | {"overhead": result.overhead, "microseconds": 1e6 * result.seconds}
    return rows, job, squared_error_estimates(error_TW, rmse_W)


def _summarize(workers: pd.DataFrame, jobs: pd.DataFrame, group_columns: list[str]) -> pd.DataFrame:
    groups = workers.groupby(group_columns)
    table = groups[["rmse", "mae"]].agg(_geometric_mean)
    worst = workers.loc[groups["rmse"].idxmax()].set_index(group_columns)
    table["worst"] = worst["rmse"]
    table["where"] = worst["trace"] + "/" + worst["worker"] if "trace" not in group_columns else worst["worker"]
    table["coverage"] = groups["coverage"].mean()
    table[["overhead", "microseconds"]] = jobs.groupby(group_columns)[["overhead", "microseconds"]].mean()
    return table.reset_index().sort_values([*group_columns[:-1], "rmse"], ignore_index=True)


def _geometric_mean(ratios: pd.Series[float]) -> float:
    with np.errstate(divide="ignore"):  # a predictor without any error has the ratio 0, and so has the mean
        return float(np.exp(np.log(ratios).mean()))
