"""Torch trains, numpy serves: fit networks by gradient descent, in one process or several.

No file that serves imports torch at its top; this one is imported only when a network is fitted.

Axes: N windows or sequences, F inputs, H hidden units, R references, G gates of a cell times H.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.functional import huber_loss

from paceline._arrays import Array
from paceline._text import join_names
from paceline.predictors.fitting import FitOptions, FitProgress
from paceline.predictors.network import Training, Windows, residual_layer


def broadcast_value(value: float) -> float:
    """Return the first process's value: on machines of two kinds, sums may differ in their last bit."""
    # NCCL sends only what lies on a device.
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    held = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(held, src=0)
    return float(held)


def all_reduce_gradients(weights: Mapping[str, torch.Tensor], loss: float) -> float:
    """Add up the gradients of all processes in place, and return the sum of their losses."""
    flat = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights.values()]
    # One exchange for all: networks this small wait for the start of a message, not for its length.
    device = flat[0].device
    sums = torch.cat([torch.tensor([loss], device=device), *(gradient.reshape(-1) for gradient in flat)])
    dist.all_reduce(sums)
    parts = sums[1:].split([gradient.numel() for gradient in flat])
    for weight, part in zip(weights.values(), parts, strict=True):
        weight.grad = part.reshape(weight.shape).clone()
    return float(sums[0])


Weights = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, ...]
TraceIndices = NDArray[np.int32]
"""For each window of a batch, the number of its trace, ``[N]``."""


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute in one thread: layers of a few units are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(eq=False)
class TrainingLoop:
    """One training: minimizes ``loss(*batch)``, the mean over a batch of these columns, over the weights, in place.

    ``generator`` draws the order of windows, and whatever ``augment`` draws, which changes a batch before it is fitted.
    ``batch_weight`` is how much a batch counts in the mean over several: by default as much as it has windows.
    """

    weights: Weights
    loss: Callable[..., torch.Tensor]
    columns: Sequence[str]
    windows: Windows
    training: Training
    fit_options: FitOptions
    generator: torch.Generator
    augment: Callable[[Batch], Batch] = lambda batch: batch
    batch_weight: Callable[[Batch], float] = lambda batch: float(len(batch[0]))

    @property
    def windows_per_epoch(self) -> int:
        """Windows of a pass."""
        return len(self.windows) - self.windows.num_validation_windows

    def run(self) -> dict[str, Array]:
        """Return the weights with the least loss on the windows that validate; the error names the batch that broke."""
        for weight in self.weights.values():
            weight.data = weight.data.to(self.fit_options.device)
            weight.requires_grad_()
        options = self.training
        rate, decay = options.learning_rate, options.weight_decay
        optimizer = torch.optim.AdamW(self.weights.values(), lr=rate, weight_decay=decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
        self.epoch = self.batch = self.windows_done = waited = 0
        self.start_time, self.last_report_time, self.best_loss = time.perf_counter(), 0.0, float("inf")
        # Before the first loss, which takes a pass over the windows that validate.
        self.fit_options.progress(FitProgress("training", 0, options.epochs * self.windows_per_epoch))
        with single_thread():
            # The start is a candidate too: training that only makes things worse leaves the weights unchanged.
            best, self.best_loss = to_arrays(self.weights), self._validation_loss()
            while self.epoch < options.epochs and waited < options.patience:
                for number, (batch, source_N) in enumerate(self.batches(), 1):
                    self.batch = number
                    optimizer.zero_grad()
                    self._backward(batch, source_N)
                    optimizer.step()
                schedule.step()
                self.epoch, waited = self.epoch + 1, waited + 1
                self.windows_done = self.epoch * self.windows_per_epoch
                if (now := self._validation_loss()) < self.best_loss:
                    best, self.best_loss, waited = to_arrays(self.weights), now, 0
        return best

    def batches(self) -> Iterator[tuple[Batch, TraceIndices]]:
        """Yield the batches of an epoch, and the traces that their windows come from."""
        size, row_N = self.training.batch_size_for(self.windows_per_epoch), self._row_indices(for_validation=False)
        row_N = row_N[torch.randperm(len(row_N), generator=self.generator)]
        for begin in range(0, len(row_N), size):
            chosen = row_N[begin : begin + size]
            yield self._gather(chosen), self.windows.records["source"][chosen.numpy()]

    def _row_indices(self, for_validation: bool) -> torch.Tensor:
        """Return the places of the windows that validate, or of those that do not."""
        return torch.from_numpy(np.flatnonzero(self.windows.records["validates"] == for_validation))

    def _gather(self, row_N: torch.Tensor) -> Batch:
        """Return the columns of these windows."""
        # index_select takes a tenth of the time of numpy's indexing.
        return tuple(torch.from_numpy(self.windows.records[name]).index_select(0, row_N) for name in self.columns)

    def _mean_loss(self, batch: Batch) -> torch.Tensor:
        return self.loss(*(part.to(self.fit_options.device) for part in batch))

    def _backward(self, batch: Batch, source_N: TraceIndices) -> None:
        # All processes draw for the whole batch, and each takes its share: together they do what one would.
        mine = full = self.augment(batch)
        value, part = 0.0, 1.0
        if self.fit_options.distributed:
            mine = tuple(column[dist.get_rank() :: dist.get_world_size()] for column in full)
            part = self.batch_weight(mine) / self.batch_weight(full)
        if len(mine[0]):
            loss = self._mean_loss(mine) * part if part != 1.0 else self._mean_loss(mine)
            loss.backward()
            value = float(loss.detach())
        if self.fit_options.distributed:
            value = all_reduce_gradients(self.weights, value)
        if not np.isfinite(value):
            raise ValueError(self._describe_nonfinite(batch, source_N))
        self._report_progress(len(source_N), value)

    def _describe_nonfinite(self, batch: Batch, source_N: TraceIndices) -> str:
        # Targets may be NaN, where a sequence has a gap; inputs never are.
        odd_N = ~torch.isfinite(batch[0]).reshape(len(source_N), -1).all(dim=1).numpy()
        for column in batch[1:]:
            odd_N |= torch.isinf(column).reshape(len(source_N), -1).any(dim=1).numpy()
        what, remedy = f"{int(odd_N.sum())} windows", "correct or leave out these traces"
        if not odd_N.any():
            what, remedy = "none of the windows", f"lower the learning rate, which is {self.training.learning_rate}"
        sources = np.unique(source_N[odd_N] if odd_N.any() else source_N)
        return (
            f"the loss is not finite in batch {self.batch} of epoch {self.epoch + 1}: {what} from "
            f"{join_names([str(self.windows.trace_names[int(one)]) for one in sources], limit=3)} contain NaN or "
            f"infinite values; {remedy}"
        )

    def _validation_loss(self) -> float:
        """Return the mean loss over all windows that validate, the same in all processes."""
        losses: list[float] = []
        weights: list[float] = []
        with torch.no_grad():
            # 8 MB of windows at once: the layers in between take several times as much.
            size = max((8 << 20) // self.windows.records.dtype.itemsize, 1)
            for chosen in self._row_indices(for_validation=True).split(size):
                batch = self._gather(chosen)
                if weight := self.batch_weight(batch):
                    weights.append(weight)
                    losses.append(float(self._mean_loss(batch)))
        if len(losses) == 1:  # as it is, to the bit
            (loss,) = losses
        else:
            weighted = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
            loss = weighted / sum(weights) if losses else float("inf")
        return broadcast_value(loss) if self.fit_options.distributed else loss

    def _report_progress(self, num_windows: int, loss: float) -> None:
        self.windows_done += num_windows
        now = time.perf_counter()
        # every 0.2 s: a terminal shows no more, and a batch takes less than a millisecond
        if now - self.last_report_time >= 0.2:
            self.last_report_time = now
            rate = self.windows_done / (now - self.start_time) if now > self.start_time else float("nan")
            total = self.training.epochs * self.windows_per_epoch
            self.fit_options.progress(FitProgress("training", self.windows_done, total, rate, loss, self.best_loss))


def to_tensor(values: Array) -> torch.Tensor:
    """Return a copy of the values in single precision, which is what torch trains on."""
    return torch.tensor(values, dtype=torch.float32)


def to_arrays(weights: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Return the weights as float64 arrays, which is what numpy serves."""
    return {name: weight.detach().cpu().numpy().astype(np.float64) for name, weight in weights.items()}


def fit_residual(
    windows: Windows,
    num_past: int,
    hidden: int,
    training: Training,
    fit_options: FitOptions,
    linear: Array,
    initial_weights: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit the weights of :func:`residual_layer` under Huber loss.

    The output layer and the direct path start at zero, so that an untrained network leaves the linear forecast as it
    is.
    """
    generator = torch.Generator().manual_seed(training.seed)
    width = 2 * (num_past + 1) + windows.width("inputs") - len(linear)
    weights = {
        "w1": torch.randn(width, hidden, generator=generator) / width**0.5,
        "b1": torch.zeros(hidden),
        "w2": torch.zeros(hidden),
        "b2": torch.zeros(()),
        "direct": torch.zeros(width),
    }
    weights |= {name: to_tensor(value) for name, value in (initial_weights or {}).items() if name != "linear"}
    path = to_tensor(linear)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        forecast = residual_layer(torch, weights | {"linear": path.to(inputs.device)}, num_past, inputs)
        return huber_loss(forecast, targets)

    columns = ("inputs", "targets")
    fitted = TrainingLoop(weights, loss, columns, windows, training, fit_options, generator).run()
    return {"linear": linear} | fitted


def fit_gates(
    windows: Windows,
    covariate_columns: Array,
    hidden: int,
    training: Training,
    fit_options: FitOptions,
    initial_weights: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit the weights of :func:`gated_layer` under Huber loss, hiding covariates.

    References, units and targets are differences from the last log speed, in running scales. A hidden covariate looks
    like one that was never sampled, so that the network learns to do without it.
    """
    generator = torch.Generator().manual_seed(training.seed)
    width, outputs = windows.width("inputs"), windows.width("references") + 2
    weights = {name: to_tensor(value) for name, value in (initial_weights or {}).items()} or {
        "w1": torch.randn(width, hidden, generator=generator) / width**0.5,
        "b1": torch.zeros(hidden),
        "w2": torch.zeros(hidden, outputs),
        "b2": torch.zeros(outputs),
    }
    columns_DF = to_tensor(covariate_columns)

    def loss(inputs: torch.Tensor, references: torch.Tensor, unit: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # the same as gated_layer, in torch
        output = torch.tanh(inputs @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]
        gates = torch.softmax(torch.nn.functional.pad(output[:, :-2], (1, 0)), dim=1)[:, 1:]
        change = (gates * references).sum(dim=1) + output[:, -2] + unit * output[:, -1]
        return huber_loss(change, target, delta=2.0)  # errors beyond 2 running scales count linearly

    def drop_covariates(batch: Batch) -> Batch:
        inputs, *others = batch
        if not len(columns_DF):
            return batch
        # an example hides any single covariate in a tenth of the cases, and all of them in 15%
        hidden = torch.rand(*inputs.shape[:-1], len(columns_DF), generator=generator) < 0.1
        hidden |= torch.rand(*inputs.shape[:-1], 1, generator=generator) < 0.15
        return (inputs * (1.0 - hidden.float() @ columns_DF), *others)

    columns = ("inputs", "references", "unit", "targets")
    return TrainingLoop(weights, loss, columns, windows, training, fit_options, generator, drop_covariates).run()


def fit_recurrent(
    layer_kind: str,
    windows: Windows,
    hidden: int,
    training: Training,
    fit_options: FitOptions,
    initial_weights: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit a recurrent layer of torch and a linear output to sequences, ``[N, S, F]``, under Huber loss.

    Every sequence starts from a zero state; a step without a target (NaN) only advances it. The layer's weights are
    returned transposed, for numpy.
    """
    generator = torch.Generator().manual_seed(training.seed)
    # torch draws the layer's first weights from its global generator. They are replaced below, and fork_rng restores
    # the generator, because fitting must not touch global random state.
    with torch.random.fork_rng():
        kind = {"SimpleRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM}[layer_kind]
        layer = kind(windows.width("inputs"), hidden, batch_first=True)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator)
    weights = {name.removesuffix("_l0"): weight for name, weight in layer.named_parameters()}
    weights |= {"out": torch.zeros(hidden), "out_bias": torch.zeros(())}
    if initial_weights:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(to_tensor(initial_weights[name].T).reshape(weight.shape))

    def loss(inputs: torch.Tensor, gaps: torch.Tensor) -> torch.Tensor:
        num_known_targets, targets = torch.isfinite(gaps).float(), torch.nan_to_num(gaps)
        forecasts = layer(inputs)[0] @ weights["out"] + weights["out_bias"]
        # errors beyond 2 running scales count linearly
        errors = huber_loss(forecasts, targets, reduction="none", delta=2.0)
        return (errors * num_known_targets).sum() / num_known_targets.sum().clamp(min=1.0)

    def num_known_targets(batch: Batch) -> float:
        return float(torch.isfinite(batch[1]).sum())

    columns = ("inputs", "targets")
    fitted = TrainingLoop(
        weights, loss, columns, windows, training, fit_options, generator, batch_weight=num_known_targets
    ).run()
    # ascontiguousarray would give the single number of out_bias an axis.
    return {name: np.array(weight.T, order="C") for name, weight in fitted.items()}
