"""One run of a script under audit: the plan by which it runs, and what its ranks recorded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline._arrays import Array

SampleRef = tuple[int, int, int]
"""A sample of the first run: the rank, the batch of that rank, and the place in it."""

Arrangement = dict[str, list[list[list[SampleRef]]]]
"""For every stream of samples, and every batch of it: which samples each rank gets."""


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """One run of a script."""

    steps: int = 4  # optimizer steps after which the script ends
    precision: str = "float64"  # or "float32"
    arrangement: Arrangement | None = None  # the samples of batches that do not get their own
    samples_folder: str = ""  # folder of the run whose samples these are
    frozen_parameters: bool = False  # every step starts from the same parameters: steps then show gradients alone
    hooks: bool = True  # hooks that the script puts on parameters run
    balanced: BalancedRun | None = None  # what a job with a balanced loader does


@dataclass(frozen=True, kw_only=True)
class BalancedRun:
    """A job with a balanced loader: equal sizes or uneven ones, and another order within each global batch."""

    uneven_sizes: bool = False  # sizes differ from rank to rank and from step to step
    seed: int = 0  # of the order within each global batch; 0 leaves it as it is
    step_samples: list[list[int]] = field(default_factory=list)  # of the first steps' samples, in place of the order's


Arrays = dict[str, Array]

RANDINT_STREAM = "torch.randint"
"""The first word of streams of numbers that a script draws by hand."""


@dataclass(frozen=True)
class Sample:
    """A sample as the audit knows it: a checksum of its content, and the sizes of its parts."""

    digest: int
    part_sizes: dict[str, int]


@dataclass
class StepRecord:
    """One optimizer step: batches delivered so far on every stream, averaged gradients, parameters afterwards.

    ``raw_gradients`` are the gradients that the last ``backward()`` left, where they were recorded.
    """

    batches_delivered: dict[str, int]
    gradients: Arrays
    parameters: Arrays
    facts: dict[str, Any] = field(default_factory=dict)
    raw_gradients: Arrays = field(default_factory=dict)


@dataclass
class RankRecord:
    """The record of one rank."""

    rank: int
    world_size: int
    streams: dict[str, list[list[Sample]]] = field(default_factory=dict)  # the batches of every stream of samples
    initial_parameters: Arrays = field(default_factory=dict)  # parameters before the first step
    steps: list[StepRecord] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # layers, samplers, random numbers, the precision

    def save(self, folder: Path) -> None:
        """Write the record, whole or not at all."""
        written = folder / f"{self.rank}.part"
        written.write_bytes(pickle.dumps(self))
        written.rename(folder / f"{self.rank}.record")


def load_pickle(path: Path) -> Any:
    """Return the plan or the record in a file of an audit, whose folder nobody else writes to."""
    return pickle.loads(path.read_bytes())


@dataclass(frozen=True)
class AuditRun:
    """Result of one run: the records of its ranks, the folder in which they lie, and the error if the run failed."""

    records: list[RankRecord]
    folder: str = ""
    error: str = ""


Runner = Callable[[AuditPlan, bool], AuditRun]
"""Runs the script by a plan, with all its ranks, or as one process if the second argument is true."""
