"""Record of a live experiment by one rank, written by the rank and read by the process that started it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from paceline.runs.iteration import Iteration


@dataclass(frozen=True)
class TurnSeen:
    """One turn of a scheme.

    Parameters
    ----------
    scheme, seed
        Who trained, and the seed of the bursts meanwhile.
    first
        Number of the turn's first iteration, counted over all turns of the scheme.
    seconds
        Wall time of each iteration, in seconds.
    machine, own
        CPU seconds of the whole machine and of this rank during the turn.
    """

    scheme: str
    seed: int
    first: int
    seconds: list[float]
    machine: float
    own: float


@dataclass(frozen=True)
class IterationSeen:
    """Report of a balanced iteration: a part of :class:`paceline.runs.iteration.Iteration`."""

    index: int
    sizes: list[int]
    seconds: list[float]
    forecast: list[float]
    overhead: float
    acted: bool
    why: str

    @classmethod
    def of(cls, iteration: Iteration) -> Self:
        """Keep the parts of an iteration from which the outcome is computed."""
        return cls(
            index=iteration.index,
            sizes=iteration.sizes.tolist(),
            seconds=iteration.seconds.tolist(),
            forecast=iteration.forecast_seconds.tolist(),
            overhead=iteration.overhead_seconds,
            acted=iteration.plan.acted,
            why=iteration.plan.why,
        )


@dataclass(frozen=True)
class RankResult:
    """Complete record of one rank.

    Parameters
    ----------
    turns
        Its turns, in their order.
    losses, weights
        Mean loss of the rank's samples and their share of the global batch, for each iteration of each scheme.
    records
        What the balanced schemes reported.
    """

    turns: list[TurnSeen]
    losses: dict[str, list[float]]
    weights: dict[str, list[float]]
    records: dict[str, list[IterationSeen]]

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record that :meth:`write` wrote."""
        plain: dict[str, Any] = json.loads(path.read_text())
        records = {scheme: [IterationSeen(**one) for one in seen] for scheme, seen in plain.pop("records").items()}
        return cls(turns=[TurnSeen(**turn) for turn in plain.pop("turns")], records=records, **plain)
