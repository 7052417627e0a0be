"""Balanced training with the Trainer of Hugging Face: a mixin that gives it our loader and attaches the balancer.

Accelerate alone needs no adapter: ``Accelerator.prepare`` hands a :class:`BalancedLoader` back as it is, so that
nothing is dealt twice, and :func:`attach` takes the model that it prepared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from paceline.coordinator.metrics import Target, sinks
from paceline.coordinator.torch import Balance, BalancedLoader, attach

FILE = "paceline.pt"
"""The file in a checkpoint's folder that holds the balancer's state."""

Base: Any = object
"""What the mixin is mixed into: a Trainer, which is not imported here."""


class BalancedTrainerMixin(Base):  # type: ignore[misc]  # it adds to whatever Trainer it is mixed into
    """Put before a ``transformers.Trainer``, it lets every rank's batch size follow its speed.

    ``per_device_train_batch_size`` becomes a mean: the global batch is that times the number of ranks, and gradients
    are weighed so that a step is that of one process on the global batch. A loss that the Trainer itself divides by
    the number of tokens of all ranks keeps that weighing. Without other ranks the Trainer is as it was. Checkpoints
    hold the balancer's state and the place in the data, and resume exactly.

    Parameters
    ----------
    *arguments, **options
        Those of the Trainer.
    balancing
        Options of :func:`paceline.coordinator.torch.attach`, such as ``predictor`` or ``policy``.
    metrics
        Where to write metrics, as :func:`paceline.coordinator.metrics.sinks` takes it: ``"run.jsonl"``, or a list.

    Attributes
    ----------
    balance
        The handle that ``attach`` returns, from the first batch on; None without other ranks.

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
        metrics: str | Iterable[Target] = (),
        **options: Any,
    ) -> None:
        self.balance: Balance | None = None
        self._balancing = dict(balancing or {})
        self._sinks = sinks(*([metrics] if isinstance(metrics, str) else metrics))
        self._feed: Feed | None = None
        super().__init__(*arguments, **options)

    def get_train_dataloader(self) -> Any:
        """Return the balanced loader; the Trainer's own without other ranks."""
        if self.args.world_size == 1:
            return super().get_train_dataloader()
        if self._feed is None:
            self._feed = Feed(self._loader(), self._attach)
        self.args.ignore_data_skip = True  # on resuming, the loader goes on where it was by itself
        return self._feed

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute a micro-batch, weighed as what it is, and return its loss, weighed likewise for the mean of ranks."""
        if self._feed is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self._feed.next()
        return super().training_step(model, inputs, num_items_in_batch) * self._feed.share

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss, and undo our weights where the Trainer has divided by the tokens of all ranks."""
        outcome = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self._feed is None or not model.training or not self._weighs_tokens(num_items_in_batch):
            return outcome
        if return_outputs:
            return outcome[0] / self._feed.share, outcome[1]
        return outcome / self._feed.share

    # -- what it is made of --------------------------------------------------------------------------------------

    def _loader(self) -> BalancedLoader:
        arguments = self.args
        if self.train_dataset is None:
            raise ValueError("train_dataset must be a dataset with a length to train on, got None")
        ahead = (
            {"prefetch_factor": arguments.dataloader_prefetch_factor} if arguments.dataloader_prefetch_factor else {}
        )
        return BalancedLoader(
            self.train_dataset,
            arguments.train_batch_size * arguments.world_size,
            rank=arguments.process_index,
            world_size=arguments.world_size,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            drop_last=arguments.dataloader_drop_last,
            accumulate=arguments.gradient_accumulation_steps,
            num_workers=arguments.dataloader_num_workers,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            **ahead,
        )

    def _attach(self) -> None:
        """Attach the balancer to the model, which the Trainer has wrapped by now."""
        if self.balance is None and self._feed is not None:
            self.balance = attach(self.model_wrapped, self._feed.loader, **self._balancing)
            self.balance.on_iteration.extend(self._sinks)

    def _weighs_tokens(self, num_items_in_batch: Any) -> bool:
        takes_count = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        return bool(self.args.average_tokens_across_devices and takes_count and num_items_in_batch is not None)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.balance is not None and self.args.should_save:
            torch.save(self.balance.state_dict(), Path(output_dir) / FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self._feed is None:
            return
        saved = Path(checkpoint) / FILE
        if not saved.is_file():
            raise FileNotFoundError(
                f"{checkpoint} holds no {FILE}: it was not saved by a balanced Trainer of many ranks"
            )
        self._attach()
        assert self.balance is not None
        self.balance.load_state_dict(torch.load(saved, weights_only=True))


class Feed:
    """A loader as the Trainer sees it, which takes all micro-batches of a step before it computes the first.

    Parameters
    ----------
    loader
        The loader.
    before_epoch
        Called before an epoch's first batch is taken.
    """

    def __init__(self, loader: BalancedLoader, before_epoch: Callable[[], None]) -> None:
        self.loader = loader
        self.before_epoch = before_epoch
        self._taken: deque[Any] = deque()

    @property
    def dataset(self) -> Any:
        """The data set, whose length the Trainer tells."""
        return self.loader.dataset

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch, and remember their sizes until they are computed."""
        self.before_epoch()
        self._taken.clear()
        for batch in self.loader:
            self._taken.append(self.loader.batch_sizes)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one."""
        self.loader.set_epoch(epoch)

    def next(self) -> None:
        """Let the loader's weight be that of the micro-batch that is computed next."""
        self.loader.batch_sizes = self._taken.popleft()

    @property
    def share(self) -> float:
        """The weight of this rank, relative to equal weights."""
        return self.loader.weight * self.loader.world_size
