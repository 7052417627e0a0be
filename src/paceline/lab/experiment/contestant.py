"""One scheme's training: every scheme starts from the same model and sees the same samples in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from paceline.coordinator.balanced.policy import Policy
from paceline.lab.experiment.experiment_tasks import live_task
from paceline.lab.experiment.setting import CONTROL, EQUAL, Setting
from paceline.predictors import LastValue, named
from paceline.recording.records import Iteration
from paceline.torch import BalancedLoader, attach


class Contestant:
    """A training job of its own, which can pause between any two iterations.

    Attributes
    ----------
    losses
        This rank's mean loss of every iteration; on a device, not yet synchronized.
    weights
        This rank's share of the samples of every iteration.
    records
        Recorded iterations of a balanced scheme; empty for equal batches.
    """

    def __init__(self, scheme: str, setting: Setting) -> None:
        torch.manual_seed(setting.seed)
        chosen = live_task(setting.model)
        task = chosen.task
        samples = len(task.inputs) // setting.global_batch * setting.global_batch
        data = TensorDataset(task.inputs[:samples], task.targets[:samples])
        self.loss_of = task.loss
        self.device = setting.device
        self._precision = torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "mixed")
        self.model = DistributedDataParallel(task.model.to(setting.device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.loader = BalancedLoader(data, setting.global_batch, seed=setting.seed)
        self._scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
        self.losses: list[torch.Tensor] = []
        self.weights: list[float] = []
        self.records: list[Iteration] = []
        if scheme != EQUAL:
            predictor = LastValue() if scheme == CONTROL else named(scheme)
            policy = Policy(warmup=2**40) if scheme == CONTROL else None  # sizes stay equal forever
            balance = attach(self.model, self.loader, predictor=predictor, policy=policy, loss=chosen.loss)
            balance.on_iteration.append(self.records.append)
            if chosen.loss == "scaled":
                self._scale = balance.scale
        self._steps = self._train()

    def step(self) -> None:
        """Train for one iteration."""
        next(self._steps)

    def finish(self) -> None:
        """Synchronize the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _train(self) -> Iterator[None]:
        while True:
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                with self._precision:
                    loss = self.loss_of(self.model(self._to_device(inputs)), self._to_device(targets))
                self._scale(loss).backward()
                self.optimizer.step()
                self.losses.append(loss.detach())  # reading it now would synchronize
                self.weights.append(self.loader.weight)
                yield

    def _to_device(self, part: torch.Tensor) -> torch.Tensor:
        return part.to(self.device, non_blocking=True)
