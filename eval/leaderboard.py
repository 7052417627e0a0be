"""Predictors side by side on recorded jobs, relative to the last value. Axis: W workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets import Trace
from paceline.eval.backtest import backtest
from paceline.predictors import LastValue, Predictor

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

YARDSTICK = "last-value"


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Errors of predictors relative to those of the last value: below 1 is better than the last value.

    Parameters
    ----------
    workers
        One row a predictor, trace and worker: ``predictor``, ``trace``, ``worker``, ``rmse`` and ``mae`` (ratios),
        ``coverage`` (share inside the 90 % interval).
    """

    workers: pd.DataFrame

    @property
    def overall(self) -> pd.DataFrame:
        """One row a predictor over all workers of all traces, best first."""
        table = _summed_up(self.workers, ["predictor"])
        worst = self.workers.loc[self.workers.groupby("predictor")["rmse"].idxmax()]
        where = {row.predictor: f"{row.trace}/{row.worker}" for row in worst.itertuples()}
        return table.assign(where=[where[name] for name in table["predictor"]])

    @property
    def per_trace(self) -> pd.DataFrame:
        """One row a trace and predictor, best first within each trace."""
        return _summed_up(self.workers, ["trace", "predictor"])


def leaderboard(predictors: Mapping[str, Predictor], traces: Iterable[Trace], *, warmup: int = 50) -> Leaderboard:
    """Backtest predictors on traces and relate their errors to those of the last value.

    Parameters
    ----------
    predictors
        The predictors by the names to show, fitted where they need it. The last value is added where it is missing.
    traces
        Recorded jobs, best ones that no predictor was fitted to.
    warmup
        Iterations at the start of each trace that are not scored.

    Returns
    -------
    Leaderboard
        ``rmse`` and ``mae`` of a row are geometric means over workers of the ratio to the last value's; ``worst``
        is the highest RMSE ratio of a single worker. Workers whose speed never changes have no ratio and are left
        out, which is logged.

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

    if YARDSTICK not in predictors:
        predictors = {YARDSTICK: LastValue(), **predictors}
    rows = [row for trace in traces for row in _rows(predictors, trace, warmup)]
    if not rows:
        raise ValueError("traces must hold at least one worker whose speed changes, got none to score")
    return Leaderboard(pd.DataFrame(rows))


def _rows(predictors: Mapping[str, Predictor], trace: Trace, warmup: int) -> list[dict[str, object]]:
    yardstick = backtest(LastValue(), trace, warmup=warmup)
    scored = [w for w, rmse in enumerate(yardstick.rmse) if rmse > 0]
    if len(scored) < len(trace.workers):
        logger.info(
            "%s: %d workers of constant or unknown speed left out", trace.name, len(trace.workers) - len(scored)
        )
    rows: list[dict[str, object]] = []
    for name, predictor in predictors.items():
        result = backtest(predictor, trace, warmup=warmup)
        with np.errstate(invalid="ignore", divide="ignore"):  # workers without a ratio are not among those scored
            rmse, mae, coverage = result.rmse / yardstick.rmse, result.mae / yardstick.mae, result.coverage
        about = {"predictor": name, "trace": trace.name}
        rows += [
            {**about, "worker": trace.workers[w], "rmse": rmse[w], "mae": mae[w], "coverage": coverage[w]}
            for w in scored
        ]
    return rows


def _summed_up(workers: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    import pandas as pd

    groups = workers.assign(rmse=np.log(workers["rmse"]), mae=np.log(workers["mae"])).groupby(by)
    table = pd.DataFrame(
        {
            "rmse": np.exp(groups["rmse"].mean()),
            "mae": np.exp(groups["mae"].mean()),
            "worst": np.exp(groups["rmse"].max()),
            "coverage": groups["coverage"].mean(),
        }
    )
    return table.reset_index().sort_values([*by[:-1], "rmse"], ignore_index=True)
