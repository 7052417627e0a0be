"""NARX and its rivals on every set of forecasts: fitted on the first half of each trace, scored on the second."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
from accuracy_scores import geometric, score, served
from accuracy_sets import DATA, Set, sets

from paceline.datasets import Trace
from paceline.predictors import ARIMA, EWMA, NARX, Predictor

TRACES, WORKERS, ITERATIONS = 12, 16, 1000
"""At most this many traces of a set, spread over it, and this many first workers and iterations of each."""


def errors(quick: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name of each set, and the RMSE of each predictor over that of the last value."""
    for data in _sets():
        if quick and data.name != "recorded":
            continue
        few = _few(data)
        rivals: dict[str, Predictor] = {"EMA": EWMA(smoothing=None), "ARIMA": ARIMA(), "NARX": NARX()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="covariates")  # some never change
            for rival in rivals.values():
                rival.fit(few.fitting)
        yield data.name, {name: geometric(score(served(rival, few), few).rmse) for name, rival in rivals.items()}


def _sets() -> Iterator[Set]:
    yield from sets(quick=True)
    for path in sorted(DATA.glob("gpu_h200/*.parquet")):
        yield Set("gpu_h200", "kernels on an H200 beside others", [Trace.load(path)])
    for path in sorted(DATA.glob("unlike_2026/*.parquet")):
        frame = pd.read_parquet(path)
        parts = [part for _, part in frame.groupby("trace", sort=False)] if "trace" in frame else [frame]
        traces = [Trace.from_frame(part.drop(columns="trace", errors="ignore")) for part in parts]
        yield Set(path.stem, "a set unlike the others", traces)


def _few(data: Set) -> Set:
    traces = data.traces[:: -(-len(data.traces) // TRACES)]
    small = [t.select(slice(0, ITERATIONS)).select(workers=t.workers[:WORKERS]) for t in traces]
    return replace(data, traces=[replace(t, workers=tuple(f"{k}/{w}" for w in t.workers)) for k, t in enumerate(small)])
