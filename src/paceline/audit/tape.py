"""A rank's record of one run: which samples it was given, and gradients and parameters of every step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array

Arrays = dict[str, Array]

RANDINT = "torch.randint"
"""The first word of streams of numbers that a script draws by hand."""


@dataclass(frozen=True)
class Sample:
    """A sample as the audit knows it: a checksum of its content, and the sizes of its parts."""

    digest: int
    counts: dict[str, int]


@dataclass
class TapedStep:
    """One optimizer step: batches delivered so far on every stream, averaged gradients, parameters afterwards.

    ``raw`` are the gradients that the last ``backward()`` left, where they were recorded.
    """

    delivered: dict[str, int]
    gradients: Arrays
    parameters: Arrays
    facts: dict[str, Any] = field(default_factory=dict)
    raw: Arrays = field(default_factory=dict)


@dataclass
class Tape:
    """The record of one rank.

    Parameters
    ----------
    rank, world_size
        The rank that the tape is of.
    streams
        The batches of every stream of samples.
    start
        Parameters before the first step.
    steps
        The steps.
    facts
        What else was seen: layers, samplers, random numbers, the precision.
    """

    rank: int
    world_size: int
    streams: dict[str, list[list[Sample]]] = field(default_factory=dict)
    start: Arrays = field(default_factory=dict)
    steps: list[TapedStep] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the tape; its JSON file comes last, so that a folder with this file is complete."""
        arrays = {f"start/{name}": array for name, array in self.start.items()}
        for number, step in enumerate(self.steps):
            arrays |= {f"gradients/{number}/{name}": array for name, array in step.gradients.items()}
            arrays |= {f"raw/{number}/{name}": array for name, array in step.raw.items()}
            arrays |= {f"parameters/{number}/{name}": array for name, array in step.parameters.items()}
        with (folder / f"{self.rank}.npz").open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        known = {
            "rank": self.rank,
            "world_size": self.world_size,
            "streams": {
                name: [[[one.digest, one.counts] for one in batch] for batch in batches]
                for name, batches in self.streams.items()
            },
            "steps": [{"delivered": step.delivered, "facts": step.facts} for step in self.steps],
            "facts": self.facts,
        }
        written = folder / f"{self.rank}.json.part"
        written.write_text(json.dumps(known), encoding="utf-8")
        written.rename(folder / f"{self.rank}.json")

    @classmethod
    def load(cls, path: Path) -> Tape:
        """Read a tape that :meth:`save` wrote, by the path of its JSON file."""
        known = json.loads(path.read_text(encoding="utf-8"))
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = dict(file)
        streams = {
            name: [[Sample(digest, counts) for digest, counts in batch] for batch in batches]
            for name, batches in known["streams"].items()
        }
        steps = [
            TapedStep(
                stored["delivered"],
                _under(arrays, f"gradients/{number}/"),
                _under(arrays, f"parameters/{number}/"),
                stored["facts"],
                _under(arrays, f"raw/{number}/"),
            )
            for number, stored in enumerate(known["steps"])
        ]
        return cls(known["rank"], known["world_size"], streams, _under(arrays, "start/"), steps, known["facts"])


def load_all(folder: Path) -> list[Tape]:
    """Return the tapes of all ranks of a run, in their order."""
    return sorted((Tape.load(path) for path in folder.glob("*.json")), key=lambda tape: tape.rank)


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
