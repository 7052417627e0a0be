"""Answers of the server to a worker: parameters and samples for a pull, a verdict for a push."""

from __future__ import annotations

from dataclasses import dataclass

from paceline._wording import count
from paceline.coordinator.asynchronous.epoch_sampler import Drawn
from paceline.coordinator.asynchronous.ledger import Outcome
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.workers import Stamp


@dataclass(frozen=True, eq=False)
class Pulled:
    """Parameters and samples with which a step starts.

    Parameters
    ----------
    stamp
        To be handed back with the push.
    parameters
        A read-only view, ``[P]``, which the next update changes: copy it, or send it, before anybody pushes.
    hand
        The samples to compute the gradient of.
    """

    stamp: Stamp
    parameters: Vector
    drawn: Drawn


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict of the server on one push.

    Parameters
    ----------
    worker
        Name of the worker that pushed.
    outcome
        Applied, damped, gathered, dropped or refused.
    version
        The version of the parameters by now.
    samples
        How many the push stood for; 0 where it belonged to no step.
    staleness
        Versions between pull and push; -1 where the push was refused.
    factor
        Factor of the learning rate for this staleness; 0 where nothing was applied.
    reason
        Why it was dropped or refused.
    given_up
        Workers whose steps have passed the bound and were given up because of this push.
    """

    worker: str
    outcome: Outcome
    version: int
    samples: int = 0
    staleness: int = -1
    factor: float = 0.0
    reason: str = ""
    given_up: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Sentence that gives the outcome and its reason; made when it is asked for.

        >>> Verdict(worker="g1", outcome=Outcome.DAMPED, version=9, samples=8, staleness=4, factor=0.2).why
        'g1 was 4 versions stale: its 8 samples count 0.2 times'
        """
        samples = count(self.samples, "sample")
        stale = f"{self.worker} was {count(self.staleness, 'version')} stale"
        match self.outcome:
            case Outcome.APPLIED:
                return f"{stale}: its {samples} count in full"
            case Outcome.DAMPED:
                return f"{stale}: its {samples} count {self.factor:.3g} times"
            case Outcome.GATHERED:
                return f"{stale}: its {samples} wait to be applied together with others; the worker goes on"
            case _:
                back = f"; its {samples} go back" if self.samples else ""
                return f"{self.outcome.value.capitalize()} the push of {self.worker}: {self.reason}{back}"
