"""The one table of the library: what every worker of one job did in every iteration.

Axes: T iterations, W workers, D drivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

Array = NDArray[np.float64]

COLUMNS = ("samples", "seconds", "comm_seconds", "wait_seconds", "start")
"""The measured columns, in the order they are stored; the last three are optional."""

UNITS = {
    "samples": "samples",
    "seconds": "s",
    "comm_seconds": "s",
    "wait_seconds": "s",
    "start": "s since 1970-01-01 UTC",
}


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One job's panel of measurements. Immutable; NaN means "no report".

    Parameters
    ----------
    samples
        Samples each worker processed in each iteration, ``[T, W]``.
    seconds
        Each worker's own compute time, without waiting or communication, ``[T, W]``, in seconds.
    comm_seconds, wait_seconds
        Time spent communicating, and waiting for others, ``[T, W]``, in seconds.
    start
        When each worker began the iteration, ``[T, W]``, in seconds since 1970 (UTC).
    drivers
        Driving factors (CPU, memory, ...) sampled at the boundary *before* each iteration, ``[T, W, D]``.
    driver_names
        The D names of the drivers, in the order of their axis.
    workers
        The W names of the workers; ``"0"``, ``"1"``, ... unless given.
    meta
        What is known about the trace: ``job``, ``source``, ``licence``, ``host``, ... ``derived`` is set when
        speeds come from a model of resource usage and were not measured.

    Raises
    ------
    ValueError
        If shapes disagree, names repeat, or a time or a sample count is negative.

    Examples
    --------
    Two workers, two iterations; the second worker is twice as fast and once did not report:

    >>> trace = Trace(samples=[[32, 32], [32, 32]], seconds=[[0.2, 0.1], [0.2, float("nan")]])
    >>> trace.speed
    array([[160., 320.],
           [160.,  nan]])
    """

    samples: Array
    seconds: Array
    comm_seconds: Array | None = None
    wait_seconds: Array | None = None
    start: Array | None = None
    drivers: Array | None = None
    driver_names: Sequence[str] = ()
    workers: Sequence[str] = ()
    meta: Mapping[str, str] = field(default_factory=dict)

    def __init__(
        self,
        samples: ArrayLike,
        seconds: ArrayLike,
        *,
        comm_seconds: ArrayLike | None = None,
        wait_seconds: ArrayLike | None = None,
        start: ArrayLike | None = None,
        drivers: ArrayLike | None = None,
        driver_names: Sequence[str] = (),
        workers: Sequence[str] = (),
        meta: Mapping[str, str] | None = None,
    ) -> None:
        panel = _panel("seconds", seconds)
        shape = panel.shape
        workers = tuple(map(str, workers)) or tuple(map(str, range(shape[1])))
        values: dict[str, object] = {
            "samples": _same_shape("samples", samples, shape),
            "seconds": _not_negative("seconds", panel),
            "comm_seconds": None if comm_seconds is None else _same_shape("comm_seconds", comm_seconds, shape),
            "wait_seconds": None if wait_seconds is None else _same_shape("wait_seconds", wait_seconds, shape),
            "start": None if start is None else _same_shape("start", start, shape),
            "drivers": _driver_panel(drivers, shape, tuple(driver_names)),
            "driver_names": _distinct("driver_names", tuple(map(str, driver_names))),
            "workers": _distinct("workers", workers, expected=shape[1]),
            "meta": MappingProxyType({str(k): str(v) for k, v in (meta or {}).items()}),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return int(self.seconds.shape[0])

    def __repr__(self) -> str:
        drivers = ", ".join(self.driver_names) or "no drivers"
        return f"<Trace {self.name!r}: {len(self)} iterations x {len(self.workers)} workers; {drivers}>"

    def __reduce__(self) -> tuple[object, ...]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return (_rebuild, ({**fields, "meta": dict(self.meta)},))

    @property
    def name(self) -> str:
        """The job's name, or ``"trace"`` if none was recorded."""
        return self.meta.get("job", "trace")

    @property
    def speed(self) -> Array:
        """Samples per second, ``[T, W]``; NaN where a worker did not report a positive time."""
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = self.samples / self.seconds
        return np.where(np.isfinite(speed) & (speed > 0), speed, np.nan)

    def select(self, iterations: slice = slice(None), workers: Sequence[str] | None = None) -> Trace:
        """Return the part of the trace with these iterations and these workers, in the order given.

        >>> trace = Trace(samples=[[8, 8], [8, 8]], seconds=[[1, 2], [1, 2]], workers=["a", "b"])
        >>> trace.select(slice(1, None), workers=["b"]).speed
        array([[4.]])
        """
        names = self.workers if workers is None else tuple(workers)
        unknown = [name for name in names if name not in self.workers]
        if unknown:
            raise ValueError(f"workers {unknown} are not in this trace; it has {list(self.workers)}")
        columns = [list(self.workers).index(name) for name in names]
        panels: dict[str, Any] = {
            name: None if (panel := getattr(self, name)) is None else panel[iterations][:, columns]
            for name in (*COLUMNS, "drivers")
        }
        return replace(self, workers=names, **panels)

    def drivers_named(self, names: Sequence[str]) -> Array | None:
        """Return the drivers with these names, ``[T, W, len(names)]``: NaN where the trace lacks one.

        ``None`` when no names are asked for.
        """
        if not names:
            return None
        panel = np.full((*self.seconds.shape, len(names)), np.nan)
        for d, name in enumerate(names):
            if self.drivers is not None and name in self.driver_names:
                panel[:, :, d] = self.drivers[:, :, list(self.driver_names).index(name)]
        return panel

    def to_frame(self) -> pd.DataFrame:
        """Return a tidy frame, one row per iteration and worker: see :func:`paceline.datasets.to_frame`."""
        from paceline.datasets.frame import to_frame

        return to_frame(self)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, *, meta: Mapping[str, str] | None = None) -> Trace:
        """Build a trace from a tidy frame: see :func:`paceline.datasets.from_frame`."""
        from paceline.datasets.frame import from_frame

        return from_frame(frame, meta=meta)

    def save(self, path: str | Path) -> Path:
        """Write the trace to a Parquet file: see :func:`paceline.datasets.save`."""
        from paceline.datasets.parquet import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace from a Parquet file: see :func:`paceline.datasets.load`."""
        from paceline.datasets.parquet import load

        return load(path)


def _rebuild(fields: dict[str, object]) -> Trace:
    return Trace(**fields)  # type: ignore[arg-type]


def _panel(name: str, values: ArrayLike) -> Array:
    panel = np.array(values, dtype=np.float64)
    if panel.ndim != 2:
        raise ValueError(f"{name} must have the shape [iterations, workers], got {panel.shape}")
    if 0 in panel.shape:
        raise ValueError(f"{name} must hold at least one iteration of one worker, got the shape {panel.shape}")
    return _frozen(panel)


def _same_shape(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    panel = _panel(name, values)
    if panel.shape != shape:
        raise ValueError(f"{name} must have the shape of seconds {shape}, got {panel.shape}")
    return panel if name == "start" else _not_negative(name, panel)


def _not_negative(name: str, panel: Array) -> Array:
    bad = np.argwhere((panel < 0) | np.isinf(panel))
    if len(bad):
        k, w = bad[0]
        raise ValueError(
            f"{name} must be finite and not negative, got {panel[k, w]} at iteration {k}, worker {w} "
            "(use NaN for a missing report)"
        )
    return panel


def _driver_panel(values: ArrayLike | None, shape: tuple[int, ...], names: tuple[str, ...]) -> Array | None:
    if values is None or not names:
        if values is not None or names:
            raise ValueError("drivers and driver_names go together: give both or neither")
        return None
    panel = np.array(values, dtype=np.float64)
    expected = (*shape, len(names))
    if panel.shape != expected:
        raise ValueError(f"drivers must have the shape [iterations, workers, drivers] {expected}, got {panel.shape}")
    return _frozen(np.where(np.isinf(panel), np.nan, panel))


def _distinct(name: str, values: tuple[str, ...], expected: int | None = None) -> tuple[str, ...]:
    if expected is not None and len(values) != expected:
        raise ValueError(f"{name} must name all {expected} workers, got {len(values)} names")
    repeated = sorted({value for value in values if values.count(value) > 1}) if len(values) < 1000 else []
    if repeated or len(set(values)) != len(values):
        raise ValueError(f"{name} must not repeat a name, got {repeated or 'repeated names'}")
    return values


def _frozen(panel: Array) -> Array:
    panel.setflags(write=False)
    return panel
