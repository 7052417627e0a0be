"""Asynchronous schemes as contestants of a live experiment: its setting and its outcome."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from paceline.coordinator.asynchronous import scheme as scheme_named
from paceline.lab.setting import Setting


@dataclass(frozen=True, kw_only=True)
class AsyncSetting(Setting):
    """A live experiment with asynchronous schemes. Every turn trains from the same initial parameters.

    Parameters are those of :class:`Setting`, but for ``schemes``: names of
    ``paceline.coordinator.asynchronous.SCHEMES``. A worker's full batch is its share of ``global_batch``.
    """

    schemes: tuple[str, ...] = ("saps", "asp", "bsp")

    def require_schemes(self) -> None:
        """Raise ``ValueError`` for an unknown scheme."""
        for name in self.schemes:
            scheme_named(name, workers=2)

    def require_device(self) -> None:
        """Raise unless it is the CPU: the server's parameters and gradients are in main memory."""
        if self.device != "cpu" or self.precision != "single":
            raise ValueError("asynchronous schemes train on the CPU, in single precision: set neither")
        super().require_device()

    @property
    def batch(self) -> int:
        """Samples of a worker's full batch."""
        return max(self.global_batch // 2, 1)

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Turns in order: the scheme that trains, and the seed of the bursts, the same for all turns of a round.

        The order rotates by one in each round, so that a drift of the machine's speed favors no scheme.
        """
        count = len(self.schemes)
        return [(self.schemes[(k + seed) % count], seed) for seed in range(self.rounds) for k in range(count)]


@dataclass(frozen=True)
class AsyncTurn:
    """One turn of a scheme, measured by the rank with the server.

    Parameters
    ----------
    scheme, seed
        Name of the scheme, and seed of the bursts.
    seconds
        Length of the turn.
    applied, losses
        Samples applied at each snapshot of the parameters, and the mean loss over the data there.
    samples
        Samples of each worker that were applied.
    waited
        Seconds that each worker waited for others.
    staleness, largest, bound
        Mean and largest staleness applied, and the scheme's bound, in versions; -1 is no bound.
    wasted
        Share of the computed samples that was wasted.
    """

    scheme: str
    seed: int
    seconds: float
    applied: list[int]
    losses: list[float]
    samples: list[int]
    waited: list[float]
    staleness: float
    largest: int
    bound: int
    wasted: float

    def loss_after(self, samples: int) -> float:
        """Return the loss after so many samples, interpolated between the two nearest evaluations."""
        return float(np.interp(samples, self.applied, self.losses))

    @classmethod
    def read(cls, path: Path) -> list[Self]:
        """Read what :func:`write_turns` wrote."""
        return [cls(**turn) for turn in json.loads(path.read_text())]


def write_turns(turns: list[AsyncTurn], path: Path) -> None:
    """Write turns as JSON."""
    path.write_text(json.dumps([asdict(turn) for turn in turns]))


@dataclass(frozen=True)
class AsyncRow:
    """Results of one scheme: medians over its turns, except where noted.

    Parameters
    ----------
    scheme
        Its name.
    samples_per_second
        Samples applied a second.
    spread
        Minimum and maximum over turns of the samples applied a second.
    loss
        After ``AsyncOutcome.equal_samples``.
    staleness
        Mean staleness of what was applied, in versions.
    largest, bound
        The largest staleness applied, and the bound; -1 is no bound.
    waiting
        The largest share of a turn that any worker waited.
    wasted
        Largest share of a turn's samples that was wasted.
    slow_share
        Share of the samples applied that came from the disturbed worker.
    """

    scheme: str
    samples_per_second: float
    spread: tuple[float, float]
    loss: float
    staleness: float
    largest: int
    bound: int
    waiting: float
    wasted: float
    slow_share: float


@dataclass(frozen=True)
class AsyncOutcome:
    """Outcome of a live experiment among asynchronous schemes."""

    setting: AsyncSetting
    turns: list[AsyncTurn]

    @property
    def equal_samples(self) -> int:
        """Samples that every turn has applied: where losses are compared."""
        return min(turn.applied[-1] for turn in self.turns)

    @property
    def rows(self) -> list[AsyncRow]:
        """Results of every scheme, in the order of the setting."""
        return [self.row(scheme) for scheme in self.setting.schemes]

    def row(self, scheme: str) -> AsyncRow:
        """Return the results of one scheme."""
        turns = [turn for turn in self.turns if turn.scheme == scheme]
        rates = [sum(turn.samples) / turn.seconds for turn in turns]
        return AsyncRow(
            scheme=scheme,
            samples_per_second=statistics.median(rates),
            spread=(min(rates), max(rates)),
            loss=statistics.median(turn.loss_after(self.equal_samples) for turn in turns),
            staleness=statistics.median(turn.staleness for turn in turns),
            largest=max(turn.largest for turn in turns),
            bound=turns[0].bound,
            waiting=max(max(turn.waited) / turn.seconds for turn in turns),
            wasted=max(turn.wasted for turn in turns),
            slow_share=statistics.median(turn.samples[-1] / max(sum(turn.samples), 1) for turn in turns),
        )
