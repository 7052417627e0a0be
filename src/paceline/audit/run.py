"""One run of a script under audit: the plan by which it runs, and what its ranks recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array

Ref = tuple[int, int, int]
"""A sample of the first run: the rank, the batch of that rank, and the place in it."""

Arranged = dict[str, list[list[list[Ref]]]]
"""For every stream of samples, and every batch of it: which samples each rank gets."""


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """One run of a script."""

    steps: int = 4  # optimizer steps after which the script ends
    precision: str = "float64"  # or "float32"
    arranged: Arranged | None = None  # the samples of batches that do not get their own
    supplies: str = ""  # folder of the run whose samples these are
    frozen: bool = False  # every step starts from the same parameters: steps then show gradients alone
    hooks: bool = True  # hooks that the script puts on parameters run
    balanced: BalancedRun | None = None  # what a job with a balanced loader does

    @classmethod
    def load(cls, path: Path) -> AuditPlan:
        """Return the plan in a file of JSON."""
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        balanced = known.pop("balanced")
        return cls(**known, balanced=None if balanced is None else BalancedRun(**balanced))


@dataclass(frozen=True, kw_only=True)
class BalancedRun:
    """A job with a balanced loader: equal sizes or uneven ones, and another order within each global batch."""

    uneven: bool = False  # sizes differ from rank to rank and from step to step
    seed: int = 0  # of the order within each global batch; 0 leaves it as it is
    numbers: list[list[int]] = field(default_factory=list)  # of the first steps' samples, in place of the order's


Arrays = dict[str, Array]

RANDINT = "torch.randint"
"""The first word of streams of numbers that a script draws by hand."""


@dataclass(frozen=True)
class Sample:
    """A sample as the audit knows it: a checksum of its content, and the sizes of its parts."""

    digest: int
    counts: dict[str, int]


@dataclass
class StepRecord:
    """One optimizer step: batches delivered so far on every stream, averaged gradients, parameters afterwards.

    ``raw`` are the gradients that the last ``backward()`` left, where they were recorded.
    """

    delivered: dict[str, int]
    gradients: Arrays
    parameters: Arrays
    facts: dict[str, Any] = field(default_factory=dict)
    raw: Arrays = field(default_factory=dict)


@dataclass
class RankRecord:
    """The record of one rank."""

    rank: int
    world_size: int
    streams: dict[str, list[list[Sample]]] = field(default_factory=dict)  # the batches of every stream of samples
    start: Arrays = field(default_factory=dict)  # parameters before the first step
    steps: list[StepRecord] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # layers, samplers, random numbers, the precision

    def save(self, folder: Path) -> None:
        """Write the record; its JSON file comes last, so that a folder with this file is complete."""
        arrays = {f"start/{name}": array for name, array in self.start.items()}
        for number, step in enumerate(self.steps):
            for kind in ("gradients", "raw", "parameters"):
                arrays |= {f"{kind}/{number}/{name}": array for name, array in getattr(step, kind).items()}
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
    def load(cls, path: Path) -> RankRecord:
        """Read a record that :meth:`save` wrote, by the path of its JSON file."""
        known = json.loads(path.read_text(encoding="utf-8"))
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = dict(file)
        streams = {
            name: [[Sample(digest, counts) for digest, counts in batch] for batch in batches]
            for name, batches in known["streams"].items()
        }

        def under(prefix: str) -> Arrays:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        steps = []
        for number, stored in enumerate(known["steps"]):
            gradients, parameters, raw = (under(f"{kind}/{number}/") for kind in ("gradients", "parameters", "raw"))
            steps.append(StepRecord(stored["delivered"], gradients, parameters, stored["facts"], raw))
        return cls(known["rank"], known["world_size"], streams, under("start/"), steps, known["facts"])


@dataclass(frozen=True)
class AuditRun:
    """Result of one run: the records of its ranks, the folder in which they lie, and the error if the run failed."""

    records: list[RankRecord]
    folder: str = ""
    error: str = ""


Runner = Callable[[AuditPlan, bool], AuditRun]
"""Runs the script by a plan, with all its ranks, or as one process if the second argument is true."""
