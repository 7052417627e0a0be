"""The policy: when to change sizes, and between which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a load balancer changes sizes, and between which bounds.

    The dead-band alone keeps sizes steady: ``benchmarks/balancer.md`` compares it with a balancer that follows every
    forecast. A lasting change is followed within five iterations.

    Parameters
    ----------
    warmup
        Iterations of equal batches at the start, in which the predictor learns the workers; 5 as in LB-BSP.
    dead_band
        Sizes are kept unless the best split is expected to save at least this share of the iteration's time, and more
        than noise alone may promise; 0 follows every forecast.
    quantum
        Every size is a multiple of this many samples.
    lower, upper
        Fewest and most samples: one number for all workers, or a mapping by name. A worker that is not named has a
        lower bound of 1 and no upper bound. Memory limits that a predictor learns come with its forecast.
    risk
        How much to spare workers with noisy forecasts, 0 to 2: see :func:`paceline.solver.caution`. With ``"auto"`` it
        is chosen online, from what each choice would lately have cost.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> Policy(quantum=8, upper={"gpu1": 128}).dead_band
    0.04
    >>> Policy(dead_band=1.5)
    Traceback (most recent call last):
    ValueError: dead_band must lie in [0, 1), got 1.5
    """

    warmup: int = 5
    dead_band: float = 0.04
    quantum: int = 1
    lower: int | Mapping[str, int] = 1
    upper: int | Mapping[str, int] | None = None
    risk: float | Literal["auto"] = 0.0

    def __post_init__(self) -> None:
        _require("warmup", self.warmup, self.warmup >= 0, "be 0 or more")
        _require("dead_band", self.dead_band, 0 <= self.dead_band < 1, "lie in [0, 1)")
        _require("quantum", self.quantum, self.quantum >= 1, "be at least 1 sample")
        known = self.risk == "auto" if isinstance(self.risk, str) else 0 <= self.risk <= 2
        _require("risk", self.risk, known, "lie in [0, 2], or be 'auto'")
        for name in ("lower", "upper"):
            bounds = getattr(self, name)
            each = bounds.values() if isinstance(bounds, Mapping) else () if bounds is None else (bounds,)
            _require(name, bounds, all(bound >= 0 for bound in each), "be 0 samples or more")


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must {wanted}, got {value}")
