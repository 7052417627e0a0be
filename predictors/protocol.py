"""The one contract that every predictor keeps: reports in, forecasts out. Axes: W workers, D covariates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, all_finite, read_only
from paceline._curves import Curves

if TYPE_CHECKING:
    from paceline.datasets import Trace


MIN_SPEED, MAX_SPEED = 1e-9, 1e12
"""Speeds outside this range, in samples/s, cannot be real and are clipped."""

MAX_VALUE = 1e18
"""Samples. So many count as no report: below this, no division by a usable time overflows. A covariate this large is
unknown."""

MIN_SECONDS = 1e-6
"""Seconds. No worker computes a batch in less, whatever its clock says, so a shorter time counts as no report."""


@dataclass(frozen=True, eq=False)
class Report:
    """One finished iteration, over the fleet. NaN where a worker did not report.

    Parameters
    ----------
    samples
        Samples each worker processed, ``[W]``.
    seconds
        Each worker's own compute time, waiting left out, ``[W]``, in seconds.
    comm_seconds
        Time each worker spent communicating, ``[W]``, in seconds.
    covariates
        The covariates sampled at the boundary before this iteration, ``[W, D]``.
    out_of_memory
        Which workers ran out of memory, ``[W]`` of bool.

    Examples
    --------
    A time of zero, or of less than a microsecond, does not count as a report:

    >>> Report(samples=[64, 64], seconds=[0.5, 0.0]).speed
    array([128.,  nan])
    """

    samples: ArrayLike
    seconds: ArrayLike
    comm_seconds: ArrayLike | None = None
    covariates: ArrayLike | None = None
    out_of_memory: ArrayLike | None = None

    @cached_property
    def speed(self) -> Array:
        """Samples per second, ``[W]``; NaN where there is no usable report. Computed once."""
        if isinstance(self.samples, Mapping) or isinstance(self.seconds, Mapping):
            raise TypeError("samples and seconds must be lists or arrays in the order of workers, got a mapping")
        samples = np.asarray(self.samples, dtype=np.float64)
        seconds = np.asarray(self.seconds, dtype=np.float64)
        if samples.ndim != 1 or samples.shape != seconds.shape:
            raise ValueError(
                f"samples and seconds must both have one entry per worker, "
                f"got the shapes {samples.shape} and {seconds.shape}"
            )
        with np.errstate(all="ignore"):
            speed = samples / seconds
        # The speed is not above 0 if samples are not, or if seconds are infinite.
        usable = (seconds >= MIN_SECONDS) & (speed > 0) & (samples < MAX_VALUE)
        return np.where(usable, np.minimum(np.maximum(speed, MIN_SPEED), MAX_SPEED), np.nan)

    @cached_property
    def complete(self) -> bool:
        """True if every worker has a usable report, and none ran out of memory."""
        return self.out_of_memory is None and all_finite(self.speed)


@dataclass(frozen=True, eq=False)
class Forecast:
    """The next speeds, and how far they may be off. Its arrays are read-only.

    Parameters
    ----------
    speed
        Expected speed of each worker, ``[W]``, in samples/s: always positive and finite.
    spread
        Relative standard deviation of the forecast's error, ``[W]``; infinite before the first report.
    batch_time
        Batch time curves, if the predictor knows them.
    levels, quantiles
        Probabilities in rising order, and the speeds not exceeded with each of them, ``[W, levels]``, if the predictor
        tracks them; NaN where they are not known yet.
    """

    speed: Array
    spread: Array
    batch_time: Curves | None = None
    levels: tuple[float, ...] = ()
    quantiles: Array | None = None

    def __post_init__(self) -> None:
        for name in ("speed", "spread", "quantiles"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_only(values))
        if (c := self.batch_time) is not None:
            lines = map(read_only, (c.floor, c.slope, c.intercept, c.limit))
            object.__setattr__(self, "batch_time", Curves(*lines))

    def quantile(self, q: float) -> Array:
        """Return the speed that is not exceeded with probability ``q``, ``[W]``, in samples/s.

        Tracked quantiles are interpolated. Without any, the error is taken to be log-normal with the forecast's spread.
        Where the spread is infinite nothing is known: the quantile is 0 below the median and infinite above it.

        >>> forecast = Forecast(speed=np.array([100.0]), spread=np.array([0.1]))
        >>> forecast.quantile(0.1).round(1), forecast.quantile(0.5)
        (array([88.]), array([100.]))
        """
        from scipy.special import ndtri

        if not 0.0 < q < 1.0:
            raise ValueError(f"q must lie strictly between 0 and 1, got {q}")
        z = float(ndtri(q))
        sigma = np.sqrt(np.log1p(np.square(self.spread)))
        # At the median z * sigma would be 0 * inf, which is NaN, where the spread is infinite.
        normal = self.speed.copy() if z == 0.0 else self.speed * np.exp(z * sigma)
        if self.quantiles is None:
            return normal
        # on the line through the neighbors, or through the last two outside
        scores, log_speed = ndtri(self.levels), np.log(self.quantiles)
        i = int(np.clip(np.searchsorted(scores, z), 1, len(scores) - 1))
        share = (z - scores[i - 1]) / (scores[i] - scores[i - 1])
        tracked = log_speed[:, i - 1] + share * (log_speed[:, i] - log_speed[:, i - 1])
        return np.where(np.isnan(tracked), normal, np.exp(tracked))

    @property
    def curves(self) -> Curves:
        """The batch time curves for the solver: those forecast, or time = samples / speed if there are none."""
        return Curves.from_speed(self.speed) if self.batch_time is None else self.batch_time


class Predictor(Protocol):
    """Forecasts the next speed of every worker of a fleet.

    The life of a predictor: ``fit`` on recorded traces (optional), ``reset`` with the fleet's names, then for each
    iteration ``predict`` before it and ``observe`` after it. :mod:`paceline.predictors.checks` states the rest of
    the contract, as checks that anyone can run on their own predictor.

    *Covariates* are known factors of a worker's speed, such as its CPU share or free memory.
    """

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array; empty before ``reset``."""

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads, in the order of their axis; empty if it reads none."""

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Learn from recorded traces. A predictor that only learns while it serves does nothing here."""

    def reset(self, workers: Sequence[str]) -> None:
        """Start, or start again, with this fleet and no memory of any iteration."""

    def join(self, worker: str) -> None:
        """Add a worker at the end of the fleet; the others keep their state."""

    def leave(self, worker: str) -> None:
        """Remove a worker; the others keep their state."""

    def rename(self, old: str, new: str) -> None:
        """Rename a worker; it keeps its place and its state."""

    def observe(self, report: Report) -> None:
        """Learn from the measurements of the iteration just finished."""

    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        """Forecast the iteration ``horizon`` ahead. Pure: a second call gives the same answer.

        ``covariates``, ``[W, D]``, are those sampled now, at the boundary before the next iteration.
        """

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned and observed, as arrays: a predictor that loads them resumes exactly."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned."""


def missing_members(predictor: object) -> list[str]:
    """Return the names of the contract that an object lacks; it may pass them on to another, in ``__getattr__``."""
    names = [name for name in (*vars(Predictor), "workers") if not name.startswith("_")]
    return sorted({name for name in names if not hasattr(predictor, name)})


def require_predictor(predictor: object) -> None:
    """Refuse an object that is not a predictor, such as a predictor's name or class."""
    what, instead = f"an object of {type(predictor).__name__}", "create one from a class in paceline.predictors"
    if isinstance(predictor, str):
        what, instead = f"the name {predictor!r}", f"paceline.predictors.named({predictor!r}) creates one"
    elif isinstance(predictor, type):
        what, instead = f"the class {predictor.__name__}", f"{predictor.__name__}() creates one"
    elif not (missing := missing_members(predictor)):
        return
    elif hasattr(predictor, "predict"):
        instead = f"it lacks {', '.join(missing)}"
    raise TypeError(f"predictor must be an instance such as EWMA(), got {what}: {instead}")
