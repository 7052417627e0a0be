"""The library's one table: the measurements of every worker of one job in every iteration.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array
from paceline.datasets import frame as tidy
from paceline.datasets import parquet
from paceline.datasets.frame import MAX_VALUE, MEASURED_COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


@dataclass(frozen=True, eq=False)
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
    work
        What each worker's samples cost, ``[T, W]``, in any unit that is the same for all workers: with it
        :func:`paceline.datasets.waiting_time.waiting_of` tells uneven samples from uneven workers.
    covariates
        Covariates of the speed (CPU share, memory, ...), sampled at the boundary *before* each iteration, ``[T, W,
        D]``.
    covariate_names
        The D names of the covariates, in the order of their axis.
    workers
        The W names of the workers; by default ``"0"``, ``"1"``, ...
    meta
        Facts about the trace: ``job``, ``source``, ``licence``, ``host``, ... ``derived`` is set if
        speeds were not measured but come from a model of resource usage.

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
    work: Array | None = None
    covariates: Array | None = None
    covariate_names: Sequence[str] = ()
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
        work: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        covariate_names: Sequence[str] = (),
        workers: Sequence[str] = (),
        meta: Mapping[str, str] | None = None,
    ) -> None:
        panel = _validate_panel("seconds", seconds)
        shape = panel.shape
        workers = tuple(map(str, workers)) or tuple(map(str, range(shape[1])))
        optional = {"comm_seconds": comm_seconds, "wait_seconds": wait_seconds, "start": start, "work": work}
        values: dict[str, object] = {
            "samples": _validate_panel("samples", samples, shape),
            "seconds": panel,
            **{name: None if one is None else _validate_panel(name, one, shape) for name, one in optional.items()},
            "covariates": _validate_covariates(covariates, shape, tuple(covariate_names)),
            "covariate_names": _validate_distinct("covariate_names", tuple(map(str, covariate_names))),
            "workers": _validate_distinct("workers", workers, count=shape[1]),
            "meta": MappingProxyType({str(k): str(v) for k, v in (meta or {}).items()}),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return int(self.seconds.shape[0])

    def __getitem__(self, iterations: slice) -> Trace:
        """Return the part of the trace with these iterations: ``trace[:1000]``."""
        if not isinstance(iterations, slice):
            raise TypeError(f"a trace takes a slice of iterations, such as trace[:1000], got {iterations!r}")
        return self.select(iterations)

    def __repr__(self) -> str:
        covariates = ", ".join(self.covariate_names) or "no covariates"
        return f"<Trace {self.name!r}: {len(self)} iterations x {len(self.workers)} workers; {covariates}>"

    def __reduce__(self) -> tuple[object, ...]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return partial(Trace, **{**fields, "meta": dict(self.meta)}), ()

    @property
    def name(self) -> str:
        """The job's name, or ``"trace"`` if none was recorded."""
        return self.meta.get("job", "trace")

    @property
    def speed(self) -> Array:
        """Samples per second, ``[T, W]``; NaN where a worker did not report a positive time."""
        with np.errstate(all="ignore"):
            speed = self.samples / self.seconds
        return np.where(np.isfinite(speed) & (speed > 0), speed, np.nan)

    def select(self, iterations: slice = slice(None), workers: Sequence[str] | None = None) -> Trace:
        """Return the part of the trace with these iterations and these workers, in the order given.

        >>> trace = Trace(samples=[[8, 8], [8, 8]], seconds=[[1, 2], [1, 2]], workers=["a", "b"])
        >>> trace.select(slice(1, None), workers=["b"]).speed
        array([[4.]])
        >>> train, test = trace[:1], trace[1:]
        >>> len(train), len(test)
        (1, 1)
        """
        names = self.workers if workers is None else tuple(workers)
        place = {name: w for w, name in enumerate(self.workers)}
        if unknown := [name for name in names if name not in place]:
            raise ValueError(f"workers {unknown} are not in this trace; it has {list(self.workers)}")
        columns = [place[name] for name in names]
        panels: dict[str, Any] = {
            name: None if (panel := getattr(self, name)) is None else panel[iterations][:, columns]
            for name in (*MEASURED_COLUMNS, "covariates")
        }
        return replace(self, workers=names, **panels)

    def covariates_named(self, names: Sequence[str]) -> Array | None:
        """Return the covariates with these names, ``[T, W, len(names)]``: NaN where the trace lacks one.

        It is ``None`` if ``names`` is empty.
        """
        if not names:
            return None
        panel = np.full((*self.seconds.shape, len(names)), np.nan)
        for d, name in enumerate(names):
            if self.covariates is not None and name in self.covariate_names:
                panel[:, :, d] = self.covariates[:, :, list(self.covariate_names).index(name)]
        return panel

    def to_frame(self) -> pd.DataFrame:
        """Return a tidy frame: ``iteration``, ``worker``, the measured columns, then one column per covariate.

        Examples
        --------
        >>> Trace(samples=[[8, 8]], seconds=[[1, 2]], workers=["a", "b"]).to_frame()
           iteration worker  samples  seconds
        0          0      a      8.0      1.0
        1          0      b      8.0      2.0
        """
        import pandas as pd

        iterations, workers = self.seconds.shape
        columns: dict[str, object] = {
            "iteration": np.repeat(np.arange(iterations), workers),
            "worker": np.tile(np.array(self.workers), iterations),
        }
        columns |= {name: panel.ravel() for name in MEASURED_COLUMNS if (panel := getattr(self, name)) is not None}
        if self.covariates is not None:
            columns |= {name: self.covariates[:, :, d].ravel() for d, name in enumerate(self.covariate_names)}
        return pd.DataFrame(columns)

    def plot(self, **options: Any) -> Any:
        """Plot every worker's speed with pandas and Matplotlib, and return the axes.

        Parameters
        ----------
        **options
            Options of :meth:`pandas.DataFrame.plot`, such as ``ax`` or ``figsize``.

        Raises
        ------
        ImportError
            If Matplotlib is missing.
        """
        import pandas as pd

        options = {"xlabel": "iteration", "ylabel": "samples/s", "title": self.name, **options}
        return pd.DataFrame(self.speed, columns=list(self.workers)).plot(**options)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        columns: Mapping[str, str | float] | None = None,
        unit: str = "s",
        start_unit: str = "s",
        meta: Mapping[str, str] | None = None,
    ) -> Trace:
        """Build a trace from a tidy frame.

        Parameters
        ----------
        frame
            Columns ``worker``, ``iteration``, ``samples``, ``seconds``, any of ``comm_seconds``, ``wait_seconds``,
            ``start``, ``work``; every other column is a covariate. Pairs of worker and iteration that are absent become
            NaN, also where an iteration is absent for all workers; ``meta["absent"]`` counts those. Datetimes become
            seconds since 1970 (without a zone they count as UTC), and timedeltas seconds.
        columns
            The frame's own names, as ``{"seconds": "duration_ms"}``; a number is the value of every row
            (``{"samples": 32}``).
        unit, start_unit
            The unit of the numbers in the columns of durations, and in ``start``: ns, us, ms, s, min or h.
        meta
            What is known about the trace.

        Raises
        ------
        ValueError
            If a column is missing or not numeric, holds dates where durations belong, a (worker, iteration) pair
            repeats, a ``start`` lies beyond the year 2100, or there is no row.

        Examples
        --------
        The second worker did not report iteration 7, so its place is NaN:

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"worker": ["a", "b", "a"], "iteration": [6, 6, 7], "samples": 8, "seconds": 0.5})
        >>> Trace.from_frame(frame).speed
        array([[16., 16.],
               [16., nan]])

        Columns with names and units of their own:

        >>> frame = pd.DataFrame({"worker": ["a"], "iteration": 0, "duration_ms": 250})
        >>> Trace.from_frame(frame, columns={"seconds": "duration_ms", "samples": 8}, unit="ms").speed
        array([[32.]])
        """
        renamed = tidy.rename_columns(frame, columns or {})
        panels = tidy.frame_to_panels(tidy.convert_to_seconds(renamed, unit, start_unit))
        return cls(**{**panels, "meta": {**(meta or {}), **panels["meta"]}})

    def save(self, path: str | Path) -> Path:
        """Write the trace to a Parquet file and return its path.

        The file is written atomically: under a temporary name, then renamed.

        Examples
        --------
        >>> import tempfile
        >>> trace = Trace(samples=[[8, 8]], seconds=[[1, 2]], meta={"job": "tiny"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(Trace.load(trace.save(f"{folder}/tiny.parquet")))
        <Trace 'tiny': 1 iterations x 2 workers; no covariates>
        """
        about = {"workers": list(self.workers), "covariates": list(self.covariate_names), "meta": dict(self.meta)}
        return parquet.write(self.to_frame(), about, path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace from a Parquet file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is cut off, not Parquet, or its columns are not those of a trace; the message names the file.
        """
        try:
            frame, about = parquet.read(path)
            trace, workers = cls.from_frame(frame, meta=about.get("meta")), about.get("workers")
        except (ValueError, RecursionError, OverflowError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
        in_order = not workers or tuple(workers) == trace.workers or set(workers) != set(trace.workers)
        return trace if in_order else trace.select(workers=workers)


def _validate_panel(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    """Return a panel of finite numbers from 0 on (of ``start``, any), in the shape of ``seconds``, or in any."""
    panel = _copy_unless_read_only(values)
    if panel.ndim != 2:
        raise ValueError(f"{name} must have the shape [iterations, workers], got {panel.shape}")
    if 0 in panel.shape:
        raise ValueError(f"{name} must have at least one iteration and one worker, got shape {panel.shape}")
    if shape is not None and panel.shape != shape:
        raise ValueError(f"{name} must have the shape of seconds {shape}, got {panel.shape}")
    if name != "start" and (bad := (panel < 0) | (panel > MAX_VALUE)).any():
        k, w = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must be a number from 0 to {MAX_VALUE:g}, got {panel[k, w]} at iteration {k}, worker {w}: check "
            "its unit, or use NaN for a missing report"
        )
    panel.setflags(write=False)
    return panel


def _validate_covariates(values: ArrayLike | None, shape: tuple[int, ...], names: tuple[str, ...]) -> Array | None:
    if values is None or not names:
        if values is not None or names:
            raise ValueError("covariates and covariate_names go together: pass both or neither")
        return None
    panel = _copy_unless_read_only(values)
    expected = (*shape, len(names))
    if panel.shape != expected:
        raise ValueError(f"covariates must have the shape [iterations, workers, names] {expected}, got {panel.shape}")
    infinite = np.isinf(panel)
    panel = np.where(infinite, np.nan, panel) if infinite.any() else panel
    panel.setflags(write=False)
    return panel


def _validate_distinct(name: str, values: tuple[str, ...], count: int | None = None) -> tuple[str, ...]:
    if count is not None and len(values) != count:
        raise ValueError(f"{name} must have {count} names, one for each worker, got {len(values)}")
    if repeated := sorted(value for value, times in Counter(values).items() if times > 1):
        raise ValueError(f"{name} must not repeat a name, got {repeated[:10]}")
    return values


def _copy_unless_read_only(values: ArrayLike) -> Array:
    """Return a copy; or the array itself, if its owner has made it read-only, as another trace does."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float64:
        return np.array(values, dtype=np.float64)
    return values if values.flags.owndata and not values.flags.writeable else values.copy()
