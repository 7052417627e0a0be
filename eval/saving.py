"""Saving from balancing, as numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline._printable import printable

LITTLE = 0.02
"""A smaller saving is less than the cost of the change and the error of the replay's simplifications."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The saving from balancing; ``str`` of it is a text to read.

    All are shares of an iteration's time with equal batches, with the exchange of gradients where it was recorded.

    Parameters
    ----------
    workers, iterations, global_batch
        Workers, replayed iterations that count, samples of one.
    saving, low, high
        The saving by the balancer of a live job, and its 90 % interval.
    hindsight
        The saving if all speeds were known in advance: what waiting costs.
    slow_machines, uneven_samples, noise
        Parts of ``hindsight``: speeds that last, samples of unequal cost, and what comes and goes with an iteration.
    slowest
        The worker that the others most often wait for.
    assumed
        Assumptions beyond the measurements, one sentence each.
    """

    workers: int
    iterations: int
    global_batch: int
    saving: float
    low: float
    high: float
    hindsight: float
    slow_machines: float
    uneven_samples: float
    noise: float
    slowest: str
    assumed: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """True if the lower end of the interval is worth a change of the script."""
        return self.low >= LITTLE

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that say the same."""
        what = f"Balancing would save {percent(self.saving)} of the time (90 % interval: {_range(self)})"
        if not self.pays:
            what += ", too little to be sure of" if self.high >= LITTLE else ", next to nothing"
        waits = f"Waiting costs {percent(self.hindsight)} of the time: slow machines {percent(self.slow_machines)}"
        waits += f", uneven samples {percent(self.uneven_samples)}, noise {percent(self.noise)}"
        whose = f"; mostly for {_named(self.slowest)}" if self.slow_machines >= LITTLE else ""
        of = f"{self.iterations} iterations of {self.workers} workers, {self.global_batch} samples each"
        return (f"{what}.", f"{waits}{whose}.", *self.assumed, f"Replayed: {of}.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"pays": self.pays, "sentences": list(self.sentences)}

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def percent(share: float) -> str:
    """Return a share as people read it."""
    return f"{_rounded(share)} %"


def _range(found: Simulation) -> str:
    return f"{_rounded(found.low)} to {_rounded(found.high)} %"


def _rounded(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}"  # the sum takes the sign off -0.0


def _named(worker: str) -> str:
    return f"worker {worker}" if worker.isdigit() else printable(worker)
