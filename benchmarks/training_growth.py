"""Two parts of training.py: fit to files of growing size, and to fleets of growing size."""

from __future__ import annotations

import tempfile
from pathlib import Path

from training_alone import Found, alone
from training_fit import fitted
from training_sizes import Sizes, taken
from training_traces import DISTINCT, fleet, make_large


def measure_memory(sizes: Sizes) -> Found:
    """Fit to files of growing size in all; only one set of files is on the disk at a time."""
    found: Found = {}
    for megabytes in sizes.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder, "first")
            first.mkdir()
            about = alone(make_large, folder=str(first), megabytes=megabytes)
            found[str(megabytes)] = about | alone(fitted, folder=folder, epochs=1, lags=4, batch_size=4096)
    return found


def page_memory(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    peaks = [one["peak"] for one in found.values()]
    missed = [] if max(peaks) < 2e9 else [f"peak memory is {max(peaks) / 1e9:.1f} GB, not under 2 GB"]
    if peaks[-1] > 1.1 * peaks[0]:
        missed.append(f"the largest trace takes {peaks[-1] / peaks[0]:.2f} times the memory of the smallest")
    if (largest := max(one["bytes"] for one in found.values())) < 20e9:
        missed.append(f"the largest trace measured has {largest / 1e9:.1f} GB, not 20")
    rows = [
        f"| {one['bytes'] / 1e9:,.1f} GB in {one['files']} files, {one['rows']:,} rows | {taken([one], 'fit')} | "
        f"{one['reading'][1]:.0%} | {one['peak'] / 1e6:,.0f} MB |"
        for one in found.values()
    ]
    lines = [
        "## Memory",
        "",
        "One pass of a NARX with 4 lags over Parquet files of 200 workers x 2,000 iterations with twelve covariates.",
        f"Beyond {DISTINCT / 1e9:.0f} GB, the files are links to the first: read and windowed again like any others.",
        "",
        "| trace | time | processor | of it reading and windowing | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    return lines, missed


def measure_growth(sizes: Sizes) -> Found:
    """Fit one pass to fleets of growing size, in files of at most 1,000 workers."""
    found: Found = {}
    workers = 100
    while workers <= sizes.largest:
        with fleet(workers, 100, files=-(-workers // 1000)) as folder:
            found[str(workers)] = alone(fitted, folder=folder, epochs=1)
        workers *= 10
    return found


def page_growth(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    rows = [
        f"| {int(workers):,} | {one['windows']:,} | {taken([one], 'fit')} | {one['reading'][1]:.0%} | "
        f"{1e6 * one['fit'][1] / one['windows']:.1f} us | {one['peak'] / 1e6:,.0f} MB |"
        for workers, one in found.items()
    ]
    lines = [
        "## Growth with the fleet",
        "",
        "One pass of NARX over 90 iterations, in files of at most 1,000 workers.",
        "",
        "| workers | windows | time | processor | of it reading and windowing | each window | peak memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    most = max(map(int, found))
    return lines, [f"growth was measured up to {most:,} workers, not 100,000"] if most < 100_000 else []
