"""One run of a script under audit: how many steps, in which precision, and which samples go where."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

Ref = tuple[int, int, int]
"""A sample of the first run: the rank, the batch of that rank, and the place in it."""

Arranged = dict[str, list[list[list[Ref]]]]
"""For every stream of samples, and every batch of it: which samples each rank gets."""


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """One run of a script.

    Parameters
    ----------
    steps
        Optimizer steps after which the script ends.
    precision
        ``"float64"`` or ``"float32"``.
    arranged
        The samples of batches that do not get their own; None leaves all as they are.
    supplies
        Folder of the run whose samples these are.
    frozen
        Whether every step starts from the same parameters: steps then show gradients alone.
    hooks
        Whether hooks that the script puts on parameters run.
    balanced
        What a job with a balanced loader does; None leaves it alone.
    """

    steps: int = 4
    precision: str = "float64"
    arranged: Arranged | None = None
    supplies: str = ""
    frozen: bool = False
    hooks: bool = True
    balanced: BalancedRun | None = None

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AuditPlan:
        """Return the plan that :meth:`to_json` wrote."""
        known: dict[str, Any] = json.loads(text)
        balanced = known.pop("balanced")
        return cls(**known, balanced=None if balanced is None else BalancedRun(**balanced))


@dataclass(frozen=True, kw_only=True)
class BalancedRun:
    """A job with a balanced loader: equal sizes or uneven ones, and another order within each global batch.

    Parameters
    ----------
    uneven
        Whether sizes differ from rank to rank and from step to step; else they are equal.
    seed
        Seed of the order within each global batch; 0 leaves it as it is.
    numbers
        The numbers of the samples of the first steps, in place of the order's.
    """

    uneven: bool = False
    seed: int = 0
    numbers: list[list[int]] = field(default_factory=list)
