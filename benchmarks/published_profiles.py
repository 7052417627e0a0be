"""Batch-time profiles that others published, as frames like those of :func:`paceline.datasets.read_profiles`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from paceline.datasets.profiles import PROFILE_COLUMNS

Rows = Iterable[tuple[object, ...]]

FLASH_UNITS = {"lstm": (1_000, 1_000), "embedding": (10_000, 1_000), "output": (1_000, 10_000)}
"""Factors by which a file of flash scales down a layer's input and output sizes."""


def read_published(path: Path, source: str) -> pd.DataFrame:
    """Read a file of gavel, zeus, pollux or flash under the name that it was published with."""
    readers = {"gavel": _gavel, "zeus": _zeus, "pollux": _pollux, "flash": _flash}
    frame = pd.DataFrame(readers[source](path), columns=list(PROFILE_COLUMNS))
    return frame.astype(dict.fromkeys(("batch", "seconds", "comm_seconds"), np.float64))


def _gavel(path: Path) -> Rows:
    """Read steps/s of jobs alone on their GPUs; jobs without a batch size in their name have no curve."""
    for device, jobs in json.loads(path.read_text()).items():
        for key, rates in jobs.items():
            name, workers = ast.literal_eval(key)
            if found := re.fullmatch(r"(.+) \(batch size (\d+)\)", name):
                seconds = 1.0 / rates["null"] if rates["null"] > 0 else np.nan
                yield "gavel", device, found[1], found[2], seconds, np.nan, f"{workers} workers"


def _zeus(path: Path) -> Rows:
    """Read seconds per epoch times the batch, the time of a step up to a constant, from summary_power_<device>.csv."""
    device = path.stem.removeprefix("summary_power_")
    for _, row in pd.read_csv(path, keep_default_na=False).iterrows():
        seconds = row["time_per_epoch"] * row["batch_size"]
        held = f"{row['optimizer']}, {row['power_limit']} W, seconds x samples of an epoch"
        yield "zeus", device, f"{row['network']}/{row['dataset']}", row["batch_size"], seconds, np.nan, held


def _pollux(path: Path) -> Rows:
    """Read <model>_placements.csv or <model>_scalability.csv."""
    model, _, kind = path.stem.rpartition("_")
    held_columns = {"placements": ["placement"], "scalability": ["num_nodes", "num_replicas"]}[kind]
    for _, row in pd.read_csv(path, dtype=dict.fromkeys(held_columns, str)).iterrows():
        held = ", ".join(f"{name} {row[name]}" for name in held_columns)
        yield "pollux", "t4", model, row["local_bsz"], row["step_time"] - row["sync_time"], row["sync_time"], held


def _flash(path: Path) -> Rows:
    """Read <device>_<layer>.json."""
    device, _, layer = path.stem.rpartition("_")
    into, out = FLASH_UNITS[layer]
    file = json.loads(path.read_text())
    for features, time in zip(file["X"], file["Y"], strict=True):
        held = f"in {features[0] * into:.0f}, out {features[1] * out:.0f}, steps {features[3] * 10:.0f}"
        yield "flash", device, layer, round(features[2] * 50), time[0], np.nan, held
