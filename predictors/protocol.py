"""The one contract that every predictor keeps. Axes: W workers, D covariates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from paceline._arrays import Array, Sizes
    from paceline.datasets import Trace
    from paceline.predictors.forecast import Forecast
    from paceline.predictors.report import Report


@runtime_checkable
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
        ...

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads, in the order of their axis; empty if it reads none."""
        ...

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Learn from recorded traces. A predictor that only learns while it serves does nothing here."""
        ...

    def reset(self, workers: Sequence[str]) -> None:
        """Start, or start again, with this fleet and no memory of any iteration."""
        ...

    def join(self, worker: str) -> None:
        """Add a worker at the end of the fleet; the others keep their state."""
        ...

    def leave(self, worker: str) -> None:
        """Remove a worker; the others keep their state."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a worker; it keeps its place and its state."""
        ...

    def observe(self, report: Report) -> None:
        """Learn from the measurements of the iteration just finished."""
        ...

    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        """Forecast the iteration ``horizon`` ahead. Pure: a second call gives the same answer.

        ``covariates``, ``[W, D]``, are those sampled now, at the boundary before the next iteration.
        """
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned and observed, as arrays: a predictor that loads them resumes exactly."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned."""
        ...


def require_predictor(predictor: object) -> None:
    """Refuse an object that is not a predictor, such as a predictor's name or class.

    Raises
    ------
    TypeError
        If it does not keep the contract; the sentence says what to pass instead.

    Examples
    --------
    >>> require_predictor(7)
    Traceback (most recent call last):
    TypeError: predictor must be one such as EWMA(), got an object of int: make one of a class in paceline.predictors
    """
    if isinstance(predictor, Predictor) and not isinstance(predictor, type):
        return
    what, instead = f"an object of {type(predictor).__name__}", "make one of a class in paceline.predictors"
    if isinstance(predictor, str):
        what, instead = f"the name {predictor!r}", f"paceline.predictors.named({predictor!r}) makes one"
    elif isinstance(predictor, type):
        what, instead = f"the class {predictor.__name__}", f"{predictor.__name__}() makes one"
    raise TypeError(f"predictor must be one such as EWMA(), got {what}: {instead}")


@runtime_checkable
class Probes(Protocol):
    """Optional part of the contract: the predictor tries sizes of its own, to learn curves.

    Batches of one size do not determine a curve.
    """

    def probe(self, sizes: Sizes, low: Array, high: Array, *, batch_multiple: int, iteration: int) -> Sizes:
        """Return sizes to try for one iteration in place of these, ``[W]``; these, if there is nothing to try.

        Their sum is the same, they lie between ``low`` and ``high``, and each differs by a multiple of
        ``batch_multiple``. Pure: every rank must get the same sizes.
        """
        ...


@runtime_checkable
class OptsOut(Protocol):
    """Optional part of the contract: the checks that the predictor does not pass, and why."""

    opts_out: Mapping[str, str]
