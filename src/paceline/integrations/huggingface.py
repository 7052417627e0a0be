"""Balanced training with Hugging Face's Trainer: a mixin that gives it a balanced loader and attaches the balancer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import torch

from paceline.integrations.huggingface_loss import has_labels, loss_of, takes_count
from paceline.integrations.huggingface_options import (
    costs_for,
    loading,
    refuse_ignored,
    shuffles,
)
from paceline.recording import Target, sinks
from paceline.torch import Balance, BalancedLoader, Costs, attach

FILE = "paceline.pt"
"""The file in a checkpoint's folder that holds the balancer's state."""

Base: Any = object
"""Base class of the mixin. It stands for a Trainer, which is not imported here."""


class BalancedTrainerMixin(Base):  # type: ignore[misc]  # it extends the Trainer that it is mixed into
    """A mixin that, put before a ``transformers.Trainer``, lets every rank's batch size follow its speed.

    ``per_device_train_batch_size`` becomes a mean: the global batch is that times the number of ranks, and a step
    equals that of one process on the global batch. Gradients are weighed by samples, or averaged plainly if the
    Trainer divides the loss by the number of tokens of all ranks. With a single rank, the Trainer is unchanged.
    Checkpoints hold the balancer's state and the place in the data, and resume exactly. Options that cannot be honored
    are refused.

    Parameters
    ----------
    *arguments, **options
        Arguments of the Trainer.
    balancing
        Options of :func:`paceline.torch.attach`, such as ``predictor`` or ``policy``.
    costs
        What samples cost, if they cost differently: a :class:`Costs`. Names of columns are those of ``train_dataset``,
        also of columns that the model does not take.
    metrics
        Where to write metrics, as :func:`paceline.recording.sink` takes it: ``"run.jsonl"``, or a list.

    Attributes
    ----------
    balance
        The handle that ``attach`` returns, from the first batch on; None with a single rank.

    Raises
    ------
    ValueError
        When training begins, if the Trainer's options assign samples, or shard the model, in a way that balanced
        batches cannot honor.

    Examples
    --------
    >>> class MyTrainer(BalancedTrainerMixin, transformers.Trainer):  # doctest: +SKIP
    ...     pass
    >>> trainer = MyTrainer(model, arguments, train_dataset=dataset, metrics="run.jsonl")  # doctest: +SKIP
    >>> trainer.train()  # under torchrun, as before  # doctest: +SKIP
    """

    def __init__(
        self,
        *arguments: Any,
        balancing: Mapping[str, Any] | None = None,
        costs: Costs | None = None,
        metrics: str | Iterable[Target] = (),
        **options: Any,
    ) -> None:
        self.balance: Balance | None = None
        self._balancing = dict(balancing or {})
        self._costs = costs
        self._sinks = sinks(*([metrics] if isinstance(metrics, str) else metrics))
        self._feed: Feed | None = None
        self._made_of: Any = None
        self._made_for: tuple[int, ...] = ()
        self._attached_to: tuple[Any, ...] = ()
        self._labeled, self._kind = False, "mean"
        self._batches_left: int | None = None
        super().__init__(*arguments, **options)

    def get_train_dataloader(self) -> Any:
        """Return the balanced loader, or the Trainer's own with a single rank."""
        arguments = self.args
        if arguments.world_size == 1:
            return super().get_train_dataloader()
        sizes = (arguments.train_batch_size, arguments.gradient_accumulation_steps)
        if self._feed is None or self._made_of is not self.train_dataset or self._made_for != sizes:
            refuse_ignored(self, BalancedTrainerMixin)
            self._feed = Feed(self._loader(), self._begin, self._send)
            self._made_of, self._made_for = self.train_dataset, sizes
        arguments.ignore_data_skip = True  # a resumed loader continues at its saved place by itself
        return self._feed

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute a micro-batch, and return its loss, weighted for the mean over the ranks that the Trainer logs."""
        if self.args.world_size == 1:
            return super().training_step(model, inputs, num_items_in_batch)
        if self._feed is None or self.balance is None:
            raise RuntimeError(
                f"{type(self).__name__} trains on batches that are not balanced: an override of get_train_dataloader "
                "must return what super().get_train_dataloader() returns"
            )
        share = self._feed.next_share()
        self._require_kind(num_items_in_batch)
        if self._kind == "mean":  # the Trainer divides it; a subclass may scale it
            self.balance.loss_divisor = getattr(
                self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps
            )
        loss = super().training_step(model, inputs, num_items_in_batch)
        return loss * share if self._kind == "mean" else loss

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Return the loss; in training, one that is divided by the tokens of all ranks is averaged plainly."""
        result = super().compute_loss(model, inputs, *arguments, **options)
        if self.balance is None or self._kind != "sum" or not torch.is_grad_enabled() or not model.training:
            return result
        loss, *rest = result if isinstance(result, tuple) else (result,)
        scaled = self.balance.scale(loss)
        return (scaled, *rest) if isinstance(result, tuple) else scaled

    # -- parts ---------------------------------------------------------------------------------------------------

    def _loader(self) -> BalancedLoader:
        arguments = self.args
        if self.train_dataset is None:
            raise ValueError("train_dataset must be a dataset with a length to train on, got None")
        dataset, collate = self._columns()
        return BalancedLoader(
            dataset,
            arguments.train_batch_size * arguments.world_size,
            rank=arguments.process_index,
            world_size=arguments.world_size,
            shuffle=shuffles(arguments),
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            drop_last=arguments.dataloader_drop_last,
            accumulate=arguments.gradient_accumulation_steps,
            collate_fn=collate,
            **loading(arguments),
            costs=costs_for(self.train_dataset, self._costs),
        )

    def _columns(self) -> tuple[Any, Any]:
        """Return the data set and its collator, without columns that the model does not take."""
        # Looked up, not imported: without `datasets` in memory, the data set cannot be one of its tables.
        table = getattr(sys.modules.get("datasets"), "Dataset", None)
        if table is not None and isinstance(self.train_dataset, table):  # unused columns are not even loaded
            return self._remove_unused_columns(self.train_dataset, description="training"), self.data_collator
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        return self.train_dataset, collate

    def _send(self, batch: Any) -> Any:
        """Move a batch to the device, as Accelerate's loaders do."""
        accelerator = self.accelerator
        send: Any = import_module("accelerate.utils").send_to_device
        return send(batch, accelerator.device, non_blocking=getattr(accelerator, "non_blocking", False))

    def _begin(self) -> None:
        """Prepare to attach at the first batch of a training; batches taken before training need no balance."""
        assert self._feed is not None
        if not self.is_in_train or self._is_attached:
            return
        if self.balance is not None:
            self.balance.close()
        self._feed.loader.after_batch = self._attach_on_first_batch

    def _attach_on_first_batch(self, sizes_W: Any, batch: Any) -> None:
        """Attach the balancer when the first batch has arrived, and pass it this batch."""
        assert self._feed is not None
        self._labeled = has_labels(batch)
        self._attach(loss_of(self, batch))
        assert self._feed.loader.after_batch is not None
        self._feed.loader.after_batch(sizes_W, batch)  # attach has replaced it with the balance's callback

    def _attach(self, kind: str) -> None:
        """Attach the balancer to the model, which the Trainer has wrapped by then."""
        assert self._feed is not None
        self._kind = kind
        self._attached_to = (self.model_wrapped, self._feed.loader)
        self.balance = balance = attach(*self._attached_to, **self._balancing)
        balance.on_iteration.extend(self._sinks)

    @property
    def _is_attached(self) -> bool:
        """True if the balancer is attached to the present model and loader: a new training may have new ones."""
        assert self._feed is not None
        now = (self.model_wrapped, self._feed.loader)
        return self.balance is not None and all(old is new for old, new in zip(self._attached_to, now, strict=True))

    def _require_kind(self, num_items_in_batch: Any) -> None:
        """Refuse a batch whose loss is of a different kind from that of the first batch."""
        if takes_count(self) and (num_items_in_batch is not None) != self._labeled:
            raise RuntimeError(
                "some batches have labels and some have none, so their losses need different weighting: the first "
                "batch of every rank must be like all others"
            )

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.balance is None:
            return
        state = self.balance.state_dict()  # on every rank, because it receives pending reports from all of them
        kind = {"loss": self._kind, "labeled": self._labeled}
        if self.args.should_save:
            torch.save({**state, **kind}, Path(output_dir) / FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self._feed is None:
            return
        saved = Path(checkpoint) / FILE
        if not saved.is_file():
            raise FileNotFoundError(
                f"{checkpoint} holds no {FILE}: it was saved with save_only_model, or not by a balanced Trainer of "
                "many ranks"
            )
        state = torch.load(saved, weights_only=True)
        if not self._is_attached:
            self._attach(state["loss"])
        assert self.balance is not None
        self.balance.load_state_dict(state)
        self._labeled = state["labeled"]
        self._note_rest(self._feed.loader)

    def _note_rest(self, loader: BalancedLoader) -> None:
        """Note how many batches are left in the current epoch: the Trainer derives the ends of its steps from it."""
        left, parts = len(loader) - loader.position[1], loader.accumulate
        if not 0 < left < len(loader):
            return
        if left % parts and not hasattr(super(), "_run_epoch"):
            raise ValueError(
                f"the epoch's last step has {left % parts} micro-batches instead of {parts}, and this version of "
                "transformers would skip it after resuming in the middle of an epoch: use version 5"
            )
        self._batches_left = left

    def _run_epoch(self, **options: Any) -> None:
        """Run an epoch; after resuming, it only has the remaining batches."""
        left, self._batches_left = self._batches_left, None
        if left is not None:
            steps = ceil(left / self.args.gradient_accumulation_steps)
            options |= {"steps_in_epoch": left, "num_update_steps_per_epoch": steps}
        super()._run_epoch(**options)


class Feed:
    """A balanced loader with the interface that the Trainer expects.

    Parameters
    ----------
    loader
        The loader.
    begin
        Called before an epoch's first batch is taken.
    send
        Moves a batch to the device.
    """

    def __init__(self, loader: BalancedLoader, begin: Callable[[], None], send: Callable[[Any], Any]) -> None:
        self.loader = loader
        self.begin = begin
        self.send = send
        self._shares: deque[float] = deque()

    @property
    def dataset(self) -> Any:
        """The data set, whose length the Trainer logs."""
        return self.loader.dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; the Trainer takes all batches of a step before it computes the first."""
        self.begin()
        self._shares.clear()
        for batch in self.loader:
            sizes_W = self.loader.batch_sizes
            self._shares.append(float(sizes_W[self.loader.rank]) * len(sizes_W) / float(sizes_W.sum()))
            yield self.send(batch)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.loader.set_epoch(epoch)

    def next_share(self) -> float:
        """Return the weight of the next batch to compute, relative to equal weights."""
        return self._shares.popleft()
