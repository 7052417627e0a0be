"""The traces that come with the library: real training jobs under real contention, recorded by ``paceline record``.

The ``meta`` of each file says how, when and on what machine it was made. Some jobs (``split`` is ``"fit"``)
are for fitting predictors, the others (``"held-out"``) for scoring them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline.datasets.trace import Trace

RECORDED_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the recorded jobs.

    >>> len(names()) >= 6
    True
    """
    return sorted(path.stem for path in RECORDED_FOLDER.glob("*.parquet"))


@cache
def load(name: str) -> Trace:
    """Return the recorded job of this name.

    Raises
    ------
    ValueError
        If there is none; the message lists the valid names.
    """
    path = RECORDED_FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise ValueError(f"there is no recorded trace {name!r}; choose one of {names()}")
    return Trace.load(path)


def load_split(split: str) -> list[Trace]:
    """Return all recorded jobs of a split, ``"fit"`` or ``"held-out"``."""
    if split not in ("fit", "held-out"):
        raise ValueError(f"split must be one of ('fit', 'held-out'), got {split!r}")
    return [trace for trace in map(load, names()) if trace.meta.get("split") == split]
