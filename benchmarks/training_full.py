"""A part of training.py: read, check, fit and backtest a usage trace in Alibaba 2018's format."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reading import MACHINES, PERIOD, make
from training_alone import Clock, Found, alone, peak
from training_sizes import Sizes, taken

if TYPE_CHECKING:
    from paceline.datasets import Trace

DAYS = 8
"""The length of the trace that Alibaba published in 2018, of about 4,000 machines."""


def measure(sizes: Sizes) -> Found:
    """Make the file, and take it from end to end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine_usage.csv"
        rows = make(path, sizes.full << 20)
        return {"rows": rows, "bytes": path.stat().st_size} | alone(end_to_end, path=str(path))


def end_to_end(path: str) -> Found:
    """Read, check, fit to and backtest the fleets of the file, one at a time."""
    import numpy as np

    from paceline.datasets import iter_traces
    from paceline.datasets.health import health
    from paceline.datasets.usage_speed import speed_from_usage
    from paceline.eval import backtest, worth
    from paceline.predictors import NARX, LastValue, Training
    from paceline.predictors.fitting import Moment
    from paceline.training import Source, fit

    found: Found = {"machines": 0, "checked": 0}

    def fleets() -> Iterator[Trace]:
        for usage in iter_traces(path, "alibaba_machine_usage", period=300):
            found["machines"] += len(usage.workers)
            yield speed_from_usage(usage, "cpu_util_percent")

    clock = Clock()
    source = Source(fleets())
    found["read"] = clock()
    clock = Clock()
    for fleet in source:
        found["checked"] += len(str(health(fleet))) + len(str(worth(fleet))) > 0
    found["check"] = clock()
    began: dict[str, list[float]] = {}
    clock = Clock()

    def tell(moment: Moment) -> None:
        began.setdefault(moment.stage, clock())

    narx = fit(NARX(covariates=(), training=Training(epochs=1)), source, progress=tell)
    found["fit"], found["windowed"] = clock(), began["training"]
    clock = Clock()
    rmse, last = [], []
    for fleet in source:
        warmup = min(50, len(fleet) // 4)  # a small file holds few iterations
        rmse.append(backtest(narx, fleet, warmup=warmup).rmse)
        last.append(backtest(LastValue(), fleet, warmup=warmup).rmse)
    found["backtest"] = clock()
    found["error"] = float(np.exp(np.nanmean(np.log(np.concatenate(rmse) / np.concatenate(last)))))
    return found | {"peak": peak()}


def page(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    steps = {
        "read as means of 5 minutes, speeds derived from usage": "read",
        "checked (`health` and `worth`, as `paceline data check` does)": "check",
        "fitted, one pass of NARX": "fit",
        "of it until the first batch: surveyed and windowed": "windowed",
        "backtested, NARX and the last value": "backtest",
    }
    days = found["rows"] / MACHINES * PERIOD / 86400
    lines = [
        "## A usage trace of 4,000 machines",
        "",
        f"A file in the format of Alibaba 2018's `machine_usage.csv`: {found['bytes'] / 1e9:.1f} GB, {found['rows']:,}",
        f"rows of {found['machines']:,} machines, {days:.2f} days; its numbers are random.",
        "",
        "| | time | processor |",
        "| --- | --- | --- |",
        *(f"| {what} | {taken([found], key)} |" for what, key in steps.items()),
        "",
        f"Peak memory: {found['peak'] / 1e6:,.0f} MB. The error is {found['error']:.2f} of the last value's.",
    ]
    return lines, [f"the usage trace has {days:.2f} days, not {DAYS}"] if days < 0.99 * DAYS else []
