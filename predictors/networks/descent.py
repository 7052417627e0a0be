"""The one training loop of all networks: batches from shuffled windows, early stopping, several processes.

Imported only when a network is fitted. Axis: N windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.predictors.fitting import FitProgress, Fitting
from paceline.predictors.networks import processes
from paceline.predictors.networks.neural import Training
from paceline.predictors.networks.training_windows import Windows

Weights = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, ...]
Sources = NDArray[np.int32]
"""For each window of a batch, the number of its trace, ``[N]``."""


def descend(
    weights: Weights,
    loss: Callable[..., torch.Tensor],
    columns: Sequence[str],
    windows: Windows,
    training: Training,
    fitting: Fitting,
    generator: torch.Generator,
    augment: Callable[[Batch], Batch] = lambda batch: batch,
    weight: Callable[[Batch], float] = lambda batch: float(len(batch[0])),
) -> dict[str, Array]:
    """Minimize ``loss(*batch)`` over the weights, and return those with the least loss on the windows that validate.

    Parameters
    ----------
    weights
        Tensors to change in place.
    loss
        The mean loss of a batch, from its columns.
    columns
        The columns of the windows that the loss takes, in order.
    windows, training, fitting
        What to train on, and how.
    generator
        Draws the order of windows, and whatever ``augment`` draws.
    augment
        Changes a batch before it is fitted.
    weight
        Returns how much a batch counts in the mean over several: by default as much as it has windows.

    Raises
    ------
    ValueError
        If the loss is no longer finite; the sentence names the batch and the traces that its windows come from.
    """
    run = Descent(weights, loss, tuple(columns), windows, training, fitting, generator, augment, weight)
    with one_thread():
        return run.to_the_end()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: layers of a few units are too small to share, and more threads only wait for each other.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Position:
    """Position of a training: its epoch, the batches and windows of it that are done, and the least loss so far."""

    epoch: int = 0
    batch: int = 0
    windows: int = 0
    waited: int = 0
    best_loss: float = float("inf")


@dataclass(eq=False)
class Descent:
    """One training: its weights, loss, windows and progress."""

    weights: Weights
    loss: Callable[..., torch.Tensor]
    columns: tuple[str, ...]
    windows: Windows
    training: Training
    fitting: Fitting
    generator: torch.Generator
    augment: Callable[[Batch], Batch]
    weight: Callable[[Batch], float]
    best: dict[str, Array] = field(default_factory=dict)
    at: Position = field(default_factory=Position)
    began: tuple[float, int] = (0.0, 0)
    reported: float = 0.0

    def to_the_end(self) -> dict[str, Array]:
        for weight in self.weights.values():
            weight.data = weight.data.to(self.fitting.device)
            weight.requires_grad_()
        options = self.training
        optimizer = torch.optim.AdamW(
            self.weights.values(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
        self.began = (time.perf_counter(), self._done())
        # Told before the first loss, which takes a pass over the windows that validate.
        self.fitting.progress(FitProgress("training", self._done(), self._total))
        # The start is a candidate too: training that only makes things worse leaves the weights unchanged.
        self.best, self.at.best_loss = numbers(self.weights), self._agreed_loss()
        while self.at.epoch < options.epochs and self.at.waited < options.patience:
            self._epoch(optimizer, schedule)
        return self.best

    def _epoch(self, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> None:
        at = self.at
        for batch, source_N in self.batches():
            optimizer.zero_grad()
            self._backward(batch, source_N)
            optimizer.step()
            at.batch += 1
        schedule.step()
        now = self._agreed_loss()
        better = now < at.best_loss
        if better:
            self.best, at.best_loss = numbers(self.weights), now
        at.epoch, at.batch, at.windows = at.epoch + 1, 0, 0
        at.waited = 0 if better else at.waited + 1

    def batches(self) -> Iterator[tuple[Batch, Sources]]:
        """Yield the batches of an epoch, and the traces that their windows come from."""
        size, row_N = self.training.batch_of(self._each), self._rows(validates=False)
        row_N = row_N[torch.randperm(len(row_N), generator=self.generator)]
        for begin in range(0, len(row_N), size):
            chosen = row_N[begin : begin + size]
            yield self._batch(chosen), self.windows.records["source"][chosen.numpy()]

    def _rows(self, validates: bool) -> torch.Tensor:
        """Return the places of the windows that validate, or of those that do not."""
        return torch.from_numpy(np.flatnonzero(self.windows.records["validates"] == validates))

    def _batch(self, row_N: torch.Tensor) -> Batch:
        """Return the columns of these windows."""
        # index_select takes a tenth of the time of numpy's indexing.
        return tuple(torch.from_numpy(self.windows.records[name]).index_select(0, row_N) for name in self.columns)

    def _mean_loss(self, batch: Batch) -> torch.Tensor:
        return self.loss(*(part.to(self.fitting.device) for part in batch))

    def _backward(self, batch: Batch, source_N: Sources) -> None:
        # All processes draw for the whole batch, and each takes its share: together they do what one would.
        full = self.augment(batch)
        mine = processes.share(full, self.fitting.distributed)
        value = float("nan")
        if len(mine[0]):
            part = self.weight(mine) / self.weight(full) if self.fitting.distributed else 1.0
            loss = self._mean_loss(mine) * part if part != 1.0 else self._mean_loss(mine)
            loss.backward()
            value = float(loss.detach())
        if self.fitting.distributed:
            value = processes.add_up(self.weights, 0.0 if not len(mine[0]) else value)
        if not np.isfinite(value):
            raise ValueError(self._not_finite(batch, source_N))
        self._report(len(source_N), value)

    def _not_finite(self, batch: Batch, source_N: Sources) -> str:
        at = f"batch {self.at.batch + 1} of epoch {self.at.epoch + 1}"
        # Targets may be NaN, where a sequence has a gap; inputs never are.
        odd_N = ~torch.isfinite(batch[0]).reshape(len(source_N), -1).all(dim=1).numpy()
        for column in batch[1:]:
            odd_N |= torch.isinf(column).reshape(len(source_N), -1).any(dim=1).numpy()
        from_where = source_N[odd_N] if odd_N.any() else source_N
        names = [str(self.windows.names[int(source)]) for source in np.unique(from_where)]
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if odd_N.any():
            return f"the loss is not finite in {at}: {int(odd_N.sum())} of its windows are not, from {listed}"
        return (
            f"the loss is not finite in {at}, whose windows are finite and come from {listed}: "
            f"lower the learning rate, which is {self.training.learning_rate}"
        )

    def _agreed_loss(self) -> float:
        loss = self._held_out_loss()
        return processes.agreed(loss) if self.fitting.distributed else loss

    def _held_out_loss(self) -> float:
        """Return the mean loss over all windows that validate."""
        losses: list[tuple[float, float]] = []
        with torch.no_grad():
            # 8 MB of windows at once: the layers in between take several times as much.
            for chosen in self._rows(validates=True).split(max((8 << 20) // self.windows.records.dtype.itemsize, 1)):
                batch = self._batch(chosen)
                if weight := self.weight(batch):
                    losses.append((weight, float(self._mean_loss(batch))))
        if len(losses) == 1:  # as it is, to the bit
            return losses[0][1]
        return (
            sum(weight * loss for weight, loss in losses) / sum(weight for weight, _ in losses)
            if losses
            else float("inf")
        )

    # -- progress ------------------------------------------------------------------------------------------------

    @property
    def _each(self) -> int:
        """The windows of a pass."""
        return len(self.windows) - self.windows.validating

    @property
    def _total(self) -> int:
        return self.training.epochs * self._each

    def _done(self) -> int:
        return self.at.epoch * self._each + self.at.windows

    def _report(self, count: int, loss: float) -> None:
        self.at.windows += count
        now = time.perf_counter()
        # every 0.2 s: a terminal shows no more, and a batch takes less than a millisecond
        if now - self.reported < 0.2:
            return
        self.reported = now
        done = self._done()
        seconds = now - self.began[0]
        rate = (done - self.began[1]) / seconds if seconds > 0 else float("nan")
        self.fitting.progress(FitProgress("training", done, self._total, rate, loss, self.at.best_loss))


def tensor(values: Array) -> torch.Tensor:
    """Return a copy of the values in single precision, which is what torch trains on."""
    return torch.tensor(values, dtype=torch.float32)


def numbers(weights: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Return the weights as float64 arrays, which is what numpy serves."""
    return {name: weight.detach().cpu().numpy().astype(np.float64) for name, weight in weights.items()}
