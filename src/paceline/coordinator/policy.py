"""Settings of when to change sizes, and the bounds of sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules for when a load balancer changes sizes, and the bounds of sizes.

    Sizes are changed once the time that keeping them is expected to have cost, summed since they were chosen, exceeds
    what a change costs. So a large gain is taken at once, a small one that lasts a little later, and one that comes
    and goes seldom.

    Parameters
    ----------
    warmup
        Iterations of equal batches at the start, in which the predictor learns the workers; 5 as in LB-BSP.
    change_cost
        Time that a change of sizes costs, in iterations; 0 follows every forecast. The default is for jobs that run
        batches of any size equally well. Where each new size is compiled, or kernels are chosen for it again,
        divide that time by the time of an iteration, such as 10.
    batch_multiple
        Every size is a multiple of this many samples.
    lower, upper
        Fewest and most samples: one number for all workers, or a mapping by name. A worker that is not named has a
        lower bound of 1 and no upper bound. Memory limits that a predictor learns come with its forecast.
    risk
        How much to spare workers with noisy forecasts, 0 to 2: see :func:`paceline.solver.safety_factor`. With
        ``"auto"`` it is chosen online, from what each choice would lately have cost, and so is whether to trust all of
        the forecast differences between workers, half of them, or none.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> Policy(batch_multiple=8, upper={"gpu1": 128}).change_cost
    0.05
    """

    warmup: int = 5
    change_cost: float = 0.05
    batch_multiple: int = 1
    lower: int | Mapping[str, int] = 1
    upper: int | Mapping[str, int] | None = None
    risk: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        _require("warmup", self.warmup, self.warmup >= 0, "be 0 or more")
        _require("change_cost", self.change_cost, 0 <= self.change_cost < math.inf, "be 0 iterations or more")
        _require("batch_multiple", self.batch_multiple, self.batch_multiple >= 1, "be at least 1 sample")
        known = self.risk == "auto" if isinstance(self.risk, str) else 0 <= self.risk <= 2
        _require("risk", self.risk, known, "lie in [0, 2], or be 'auto'")
        for name in ("lower", "upper"):
            bounds = getattr(self, name)
            each = bounds.values() if isinstance(bounds, Mapping) else () if bounds is None else (bounds,)
            _require(name, bounds, all(bound >= 0 for bound in each), "be 0 samples or more")


def _require(name: str, value: object, holds: bool, requirement: str) -> None:
    if not holds:
        raise ValueError(f"{name} must {requirement}, got {value}")


def default_batch_multiple(global_batch: int, workers: int) -> int:
    """Return the largest power of two that divides the batch and fits 30 times into a worker's share of it.

    >>> [default_batch_multiple(batch, workers=2) for batch in (896, 1000, 30)]
    [8, 8, 1]
    """
    # rounding then moves a size by at most a thirtieth
    largest = global_batch / workers / 30
    batch_multiple = 1
    while 2 * batch_multiple <= largest and global_batch % (2 * batch_multiple) == 0:
        batch_multiple *= 2
    return batch_multiple
