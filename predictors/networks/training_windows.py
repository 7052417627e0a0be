"""Training windows: what a network is fitted to, collected by passing traces through its serving code.

Axis: N windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.predictors.fitting import FitProgress, Fitting, Survey
from paceline.predictors.networks.neural import Examples, Sequences

if TYPE_CHECKING:
    from paceline.datasets import Trace

Part = Examples | Sequences
Records = NDArray[np.void]
"""Windows as records: a field for each column of the examples in single precision, and ``source``, their trace."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Training windows of many traces.

    Parameters
    ----------
    records
        The windows, in the order of the traces.
    names
        The traces that they come from, by ``source``.
    """

    records: Records
    names: Sequence[str]

    def width(self, column: str) -> int:
        """Return the length of the last axis of a column."""
        return int(self.records.dtype[column].shape[-1])

    def __len__(self) -> int:
        return len(self.records)

    @property
    def validating(self) -> int:
        """Windows in all that validate."""
        return int(self.records["validates"].sum()) if len(self) else 0


def collected(
    traces: Iterable[Trace],
    survey: Survey,
    fitting: Fitting,
    parts_of: Callable[[Trace], Iterable[Part]],
    needs: str = "",
) -> Windows:
    """Return the windows of all traces, of very many a random sample: those of two million speeds.

    Parameters
    ----------
    traces, survey, fitting
        What to fit to.
    parts_of
        Yields a trace's windows part by part.
    needs
        What a trace may be too short for, for the error.

    Raises
    ------
    ValueError
        If there are no windows to fit, or none that validate.
    """
    # Two million take at most a gigabyte, and more no longer change what a network of some thousand weights learns.
    share = 2_000_000 / max(survey.speeds, 1)
    rng = np.random.default_rng(0)
    names: list[str] = []
    blocks: list[Records] = []
    kind: np.dtype[np.void] | None = None
    total, began = len(survey.lengths), time.perf_counter()
    for done, trace in enumerate(traces, 1):
        names.append(trace.meta.get("file", trace.name))
        for part in parts_of(trace):
            kind = kind or _kind(part)
            records = np.empty(len(part.validates), dtype=kind)
            for name in (kind.names or ())[:-1]:
                records[name] = getattr(part, name)
            records["source"] = done - 1
            blocks.append(records if share >= 1.0 else records[rng.random(len(records)) < share])
        fitting.progress(FitProgress("windows", done, total, done / (time.perf_counter() - began)))
    windows = Windows(np.concatenate(blocks) if blocks else np.empty(0, dtype=[]), names)
    if windows.validating in (0, len(windows)):
        raise ValueError(_too_few(fitting, survey, needs))
    return windows


def _kind(part: Part) -> np.dtype[np.void]:
    columns: list[tuple[Any, ...]] = [
        (field.name, np.bool_ if field.name == "validates" else np.float32, getattr(part, field.name).shape[1:])
        for field in fields(part)
    ]
    # Aligned: numpy copies numbers that are not several times as slowly.
    return np.dtype([*columns, ("source", np.int32)], align=True)


def _too_few(fitting: Fitting, survey: Survey, needs: str) -> str:
    if fitting.held_out is not None and max(survey.lengths) > 10:
        return (
            f"of {len(survey.workers)} workers {len(fitting.held_out)} are held out, and one part has no window: "
            "hold out another share, or give longer traces"
        )
    lengths = list(survey.lengths[:10])
    shown = f"{lengths}" if len(survey.lengths) <= 10 else f"{lengths[:-1]}, ..."
    return f"traces of {shown} iterations are too short to fit {needs}".rstrip()
