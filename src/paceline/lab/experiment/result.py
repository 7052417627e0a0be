"""Results of one rank of a live experiment, passed to the parent process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from paceline.recording.records import Iteration


@dataclass(frozen=True)
class TurnResult:
    """One turn of a scheme.

    Parameters
    ----------
    scheme, seed
        Name of the scheme, and seed of the bursts.
    first
        Number of the turn's first iteration, counted over all turns of the scheme.
    seconds
        Wall time of each iteration, in seconds.
    machine, own
        CPU seconds of the machine and of this rank during the turn.
    """

    scheme: str
    seed: int
    first: int
    seconds: list[float]
    machine: float
    own: float


@dataclass(frozen=True)
class IterationResult:
    """A balanced iteration: some fields of :class:`paceline.recording.records.Iteration`."""

    index: int
    sizes: list[int]
    seconds: list[float]
    forecast: list[float]
    overhead: float
    acted: bool
    why: str

    @classmethod
    def of(cls, iteration: Iteration) -> Self:
        """Copy the fields that the outcome is computed from."""
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
    """Results of one rank.

    Parameters
    ----------
    turns
        Its turns, in their order.
    losses, weights
        Mean loss of the rank's samples and their share of the global batch, for each iteration of each scheme.
    records
        Iterations of the balanced schemes.
    """

    turns: list[TurnResult]
    losses: dict[str, list[float]]
    weights: dict[str, list[float]]
    records: dict[str, list[IterationResult]]

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`write` wrote."""
        plain: dict[str, Any] = json.loads(path.read_text())
        records = {
            scheme: [IterationResult(**one) for one in iterations]
            for scheme, iterations in plain.pop("records").items()
        }
        return cls(turns=[TurnResult(**turn) for turn in plain.pop("turns")], records=records, **plain)
