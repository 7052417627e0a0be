"""Setting of a live experiment: the schemes it compares, and how one rank is disturbed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.tasks import TASKS, require_models
from paceline.predictors import named

EQUAL = "equal"
"""Plain DistributedDataParallel with equal batches: what every scheme is compared with."""
CONTROL = "control"
"""Equal batches with measuring and forecasting: shows the overhead of balancing."""

DISTURBED = 1
"""The rank that is disturbed."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One live experiment.

    Parameters
    ----------
    contention
        A key of ``DISTURBANCES``.
    schemes
        Predictors by name, such as ``"auto"`` or ``"ewma:smoothing=0.5"``, or ``"control"``.
    model
        Name of the task: a key of ``paceline.lab.TASKS``.
    global_batch
        Samples of all ranks in an iteration.
    rounds
        Turns of every scheme, each between two turns of equal batches.
    seconds
        Length of a turn.
    seed
        Seed of the model, of the order of the data, and of the bursts.
    device
        ``"cpu"``, or ``"cuda"``: a device that both ranks share.
    precision
        ``"single"``, or ``"mixed"``: autocast to bfloat16.

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
    device: str = "cpu"
    precision: str = "single"

    def __post_init__(self) -> None:
        if self.contention not in DISTURBANCES:
            raise ValueError(f"contention must be one of {list(DISTURBANCES)}, got {self.contention!r}")
        if self.model not in TASKS:
            raise ValueError(f"model must be one of {list(TASKS)}, got {self.model!r}")
        for scheme in self.schemes:
            if scheme != CONTROL:
                named(scheme)
        for name in ("rounds", "seconds", "global_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.precision not in ("single", "mixed"):
            raise ValueError(f"precision must be 'single' or 'mixed', got {self.precision!r}")
        self._require_device()

    def _require_device(self) -> None:
        """Raise if there is no such device, or the contention needs another one."""
        if self.device == "cpu":
            if DISTURBANCES[self.contention].kernels:
                raise ValueError(f"the contention {self.contention!r} needs a CUDA device: set device='cuda'")
            return
        require_models("a live experiment")
        import torch

        if self.device != "cuda" or not torch.cuda.is_available():
            raise ValueError(f"device must be 'cpu', or 'cuda' where torch finds a device, got {self.device!r} here")

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Turns in order: the scheme that trains, and the seed of the bursts, the same for all turns of a round."""
        order: list[tuple[str, int]] = []
        for seed in range(self.rounds):
            order.append((EQUAL, seed))
            # Every other round runs backwards, so that the order favors no scheme.
            for scheme in self.schemes[:: -1 if seed % 2 else 1]:
                order += [(scheme, seed), (EQUAL, seed)]
        return order
