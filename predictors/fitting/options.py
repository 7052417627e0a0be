"""Options of a fit, beside the traces: held-out workers, a device, and a callback for progress.

Axes: W workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast, runtime_checkable

import numpy as np

from paceline._arrays import Mask
from paceline.predictors.fitting.survey import Survey
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.protocol import Predictor

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace

P = TypeVar("P", bound=Predictor)


def as_traces(traces: Trace | Iterable[Trace]) -> list[Trace]:
    """Return traces as a list: one trace, several, or a tidy DataFrame of one job.

    Raises
    ------
    TypeError
        If something else than a trace is among them.

    Examples
    --------
    >>> from paceline.datasets import Trace
    >>> one = Trace(samples=[[8, 8]], seconds=[[1, 2]])
    >>> as_traces(one) == as_traces([one]) == [one]
    True
    """
    from paceline.datasets import Trace

    if isinstance(traces, Trace):
        return [traces]
    if hasattr(traces, "columns"):
        return [Trace.from_frame(cast("pd.DataFrame", traces))]
    found = list(traces) if isinstance(traces, Iterable) and not isinstance(traces, str) else [traces]
    for one in found:
        if not isinstance(one, Trace):
            raise TypeError(f"fit takes a Trace, several, or a tidy DataFrame, got {type(one).__name__} {one!r:.60}")
    return found


@dataclass(frozen=True)
class FitProgress:
    """Progress of a fit.

    Parameters
    ----------
    stage
        What is being done: ``"read"``, ``"windows"``, or the name of the network that trains.
    done, total
        Traces or windows done, of how many. Training may end earlier, when the loss on held-out windows stops falling.
    rate
        Traces or windows per second; NaN until known.
    loss, held_out
        The newest batch's loss, and the least loss on held-out windows; NaN before the first.
    """

    stage: str
    done: int
    total: int
    rate: float = float("nan")
    loss: float = float("nan")
    held_out: float = float("nan")

    @property
    def seconds_left(self) -> float:
        """Seconds until the end at this rate, at most; NaN while the rate is not known."""
        return (self.total - self.done) / self.rate if self.rate > 0 else float("nan")


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Options of a fit.

    Parameters
    ----------
    survey
        What the traces hold, if that is known already; it saves a pass over them.
    warm
        Start from what the predictor has learned before, instead of starting from scratch.
    held_out
        Names of the workers whose speeds are never fitted, only used to decide when to stop; ``None`` holds out the
        end of every trace instead.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    distributed
        Whether all processes of the default group of ``torch.distributed`` fit together.
    progress
        Called with a :class:`FitProgress` now and then.
    """

    survey: Survey | None = None
    warm: bool = False
    held_out: frozenset[str] | None = None
    device: str = "cpu"
    distributed: bool = False
    progress: Callable[[FitProgress], None] = field(default=lambda _: None)

    def surveyed(self, traces: Iterable[Trace]) -> Survey:
        """Return the survey of the traces."""
        return self.survey or Survey.of(traces, held_out=(self.held_out or frozenset()).__contains__)

    def roles(self, trace: Trace, validation: float) -> Iterator[tuple[Mask, bool]]:
        """Yield for each iteration which workers' windows are used, ``[W]``, and whether they validate.

        The last share of every trace validates. With held-out workers only theirs do, and their earlier windows are not
        used: what decides when to stop comes neither from a worker nor from a time that was fitted.
        """
        held_W = None if self.held_out is None else np.array([name in self.held_out for name in trace.workers])
        everyone_W = np.ones(len(trace.workers), dtype=bool)
        for k in range(len(trace)):
            validates = k >= (1.0 - validation) * len(trace)
            yield (everyone_W if held_W is None else held_W == validates), validates

    def without_held_out(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Yield the traces without their held-out workers; one that has no others is left out."""
        for trace in traces:
            names = [name for name in trace.workers if name not in (self.held_out or ())]
            if names:
                yield trace if len(names) == len(trace.workers) else trace.select(workers=names)


@runtime_checkable
class Streams(Protocol):
    """Optional part of the contract: the predictor can be fitted to traces that do not fit into memory."""

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Learn from traces, which may be read more than once and never all at once."""
        ...


def fit_with(predictor: Any, traces: Iterable[Trace], fitting: Fitting) -> None:
    """Fit a predictor in place, streamed where it can; any other gets a list, without the held-out workers.

    Examples
    --------
    >>> from paceline.datasets import Trace
    >>> from paceline.predictors import EWMA
    >>> model = EWMA(smoothing=None)
    >>> fit_with(model, [Trace([[8]] * 4, [[1.0], [0.9], [0.81], [0.73]])], Fitting())
    >>> model.smoothing_
    1.0
    """
    if streams(predictor):
        predictor.fit_streamed(traces, fitting)
    else:
        if fitting.warm and type(predictor).fit is not FleetPredictor.fit:
            raise ValueError(
                f"{type(predictor).__name__} defines fit alone, which starts from scratch: without fit_streamed it "
                "cannot start from an earlier model"
            )
        predictor.fit(list(fitting.without_held_out(traces)))


def streams(predictor: object) -> bool:
    """Return whether a predictor can be fitted to a stream; one that overrides ``fit`` alone cannot."""
    for kind in type(predictor).__mro__:
        if "fit_streamed" in vars(kind):
            return True
        if "fit" in vars(kind):
            return False
    return False
