"""What a live experiment compares, and under what contention."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.coordinator.experiment.tasks import TASKS
from paceline.predictors import named

EQUAL = "equal"
"""Plain DistributedDataParallel with equal batches: what every scheme is compared with."""
CONTROL = "control"
"""Equal batches too, but reported and forecast as if they were to be changed: shows what looking costs."""


DISTURBED = 1
"""The rank that is disturbed."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """How rank 1 is disturbed.

    Parameters
    ----------
    quota
        Cores that rank 1 may use while it is disturbed; None for no quota.
    hogs
        Processes that compete for the core of rank 1 while it is disturbed.
    between
        Seconds of other work that rank 1 does between two iterations while it is disturbed, as reading data or writing
        logs would be.
    bursts
        Mean seconds that the disturbance lasts, and that the calm between two lasts; None if it never ends.
    """

    quota: float | None = None
    hogs: int = 0
    between: float = 0.0
    bursts: float | None = None

    def __str__(self) -> str:
        """Say what happens, in a phrase."""
        what = f"a quota of {self.quota:.0%} of a core" if self.quota else f"{self.hogs} competing processes"
        if self.between:
            what = f"{self.between * 1e3:g} ms of other work after each iteration"
        elif not self.quota and not self.hogs:
            return "nobody is disturbed"
        when = "all the time" if self.bursts is None else f"on and off at random, {self.bursts:g} s each in the mean"
        return f"rank 1 has {what}, {when}"


CONTENTIONS = {
    "none": Contention(),
    "quota": Contention(quota=0.5),
    "hogs": Contention(hogs=3),
    "bursty": Contention(quota=0.25, bursts=2.0),
    "between": Contention(between=0.04),
    "bursty-hogs": Contention(hogs=3, bursts=2.0),
}
"""The kinds of contention, by name. Quotas need control groups that can be written."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One live experiment.

    Parameters
    ----------
    contention
        A key of ``CONTENTIONS``.
    schemes
        Predictors by name, such as ``"auto"`` or ``"ewma:smoothing=0.5"``, or ``"control"``.
    model
        What is trained: one of ``paceline.coordinator.experiment.TASKS``.
    global_batch
        Samples of all ranks in an iteration.
    rounds
        How often every scheme has its turn; each lies between two of equal batches.
    seconds
        How long a turn lasts.
    seed
        Seed of the model, of the order of the data, and of the bursts.

    Raises
    ------
    ValueError
        If there is no such contention, model or predictor, or a number is not above 0.
    """

    contention: str = "quota"
    schemes: tuple[str, ...] = ("auto",)
    model: str = "digits-cnn"
    global_batch: int = 896
    rounds: int = 4
    seconds: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.contention not in CONTENTIONS:
            raise ValueError(f"contention must be one of {list(CONTENTIONS)}, got {self.contention!r}")
        if self.model not in TASKS:
            raise ValueError(f"model must be one of {list(TASKS)}, got {self.model!r}")
        for scheme in self.schemes:
            if scheme != CONTROL:
                named(scheme)  # here, not in the ranks: says which predictors there are
        for name in ("rounds", "seconds", "global_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Who trains when, and the seed of the bursts meanwhile: all turns of a round see the same."""
        order: list[tuple[str, int]] = []
        for seed in range(self.rounds):
            order.append((EQUAL, seed))
            for scheme in self.schemes:
                order += [(scheme, seed), (EQUAL, seed)]
        return order
