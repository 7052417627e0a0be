"""Balanced training with Hugging Face's Trainer: a mixin that gives it a balanced loader and attaches the balancer."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import torch

from paceline.recording import Target, sinks
from paceline.torch import Balance, BalancedLoader, BalanceWarning, Costs, attach
from paceline.torch.counting import BackwardGraph

SHUFFLE_BY_STRATEGY = {"random": True, "sequential": False}
"""Supported sampling strategies, and whether they shuffle."""

__all__ = ["BalancedTrainerMixin"]


def require_supported_options(trainer: Any, mixin: type) -> None:
    """Raise a ValueError for the first option that would be ignored, with what to do instead."""
    _require_data_parallel(trainer)
    _require_own_sampling(trainer, mixin)
    _require_supported_arguments(trainer.args)
    if trainer.args.full_determinism:
        warnings.warn(
            "full_determinism cannot make runs repeat bit for bit: sizes follow measured times, and the rounding of "
            "sums depends on the sizes",
            BalanceWarning,
            stacklevel=2,
        )


def loader_options(arguments: Any) -> dict[str, Any]:
    """Return the loader's options for loading samples, from the Trainer's arguments."""
    options: dict[str, Any] = {"pin_memory": arguments.dataloader_pin_memory and arguments.device.type == "cuda"}
    if arguments.dataloader_num_workers:
        # It seeds a loading process, differently on every rank; before transformers 4.52 it took only its number.
        seed_worker = import_module("transformers.trainer_utils").seed_worker
        known = inspect.signature(seed_worker).parameters
        of_seeds = {"num_workers": arguments.dataloader_num_workers, "rank": arguments.process_index}
        options |= {
            "num_workers": arguments.dataloader_num_workers,
            "prefetch_factor": arguments.dataloader_prefetch_factor,
            "multiprocessing_context": getattr(arguments, "dataloader_multiprocessing_context", None),
            "worker_init_fn": partial(seed_worker, **{name: of_seeds[name] for name in of_seeds if name in known}),
        }
    return options


def _require_data_parallel(trainer: Any) -> None:
    """Refuse kinds of training in which neither DistributedDataParallel nor FSDP2 sums the gradients."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    ways = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP1": trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2,
        "FSDP of XLA": trainer.is_fsdp_xla_enabled,
        "a ParallelismConfig": getattr(trainer.accelerator, "parallelism_config", None) is not None,
        "a model sharded by from_pretrained()": getattr(trainer, "is_distributed_loading_by_transformers", False),
        "model parallelism": trainer.is_model_parallel,
    }
    if (way := next((way for way, used in ways.items() if used), None)) is not None:
        raise ValueError(
            f"the Trainer is set to use {way}, but batches can be balanced only with DistributedDataParallel or FSDP2: "
            "set fsdp=True with fsdp_config={'version': 2}, or write a loop without the Trainer and call "
            "attach(model, loader)"
        )


def _require_own_sampling(trainer: Any, mixin: type) -> None:
    for name in ("_get_train_sampler", "_get_dataloader", "get_train_dataloader"):
        kinds = type(trainer).__mro__
        if name in vars(mixin):
            kinds = kinds[kinds.index(mixin) + 1 :]
        owner = next(kind for kind in kinds if name in vars(kind))  # whose method would be used without the mixin
        if not owner.__module__.startswith("transformers."):
            raise ValueError(
                f"{owner.__name__}.{name} chooses the samples of a rank, which would be ignored: BalancedLoader "
                "assigns balanced batches to ranks. Remove the override, or the BalancedTrainerMixin"
            )


def _require_supported_arguments(arguments: Any) -> None:
    way = "group_by_length" if getattr(arguments, "group_by_length", False) else None
    way = way or getattr(arguments, "train_sampling_strategy", "random")
    if way not in SHUFFLE_BY_STRATEGY:
        raise ValueError(
            f"train_sampling_strategy must be one of {sorted(SHUFFLE_BY_STRATEGY)}, got {way!r}: to divide by the "
            "samples' lengths, leave it out and pass costs=Costs(lengths=...) to the Trainer"
        )
    by_loader = "BalancedLoader assigns the batches, in order, and Accelerate does not"
    accelerator_config = arguments.accelerator_config
    for options, name, wanted, reason in (
        (
            arguments,
            "auto_find_batch_size",
            False,
            "it would start again with smaller batches on one rank only. Set a batch size that fits, and "
            "balancing={'policy': Policy(upper=...)} to limit every rank's batch",
        ),
        (
            arguments,
            "average_tokens_across_devices",
            True,
            "otherwise each rank divides its loss by the tokens of its own batch, and tokens count more on ranks that "
            "have few of them",
        ),
        (arguments, "dataloader_in_order", True, by_loader),
        (accelerator_config, "split_batches", False, by_loader),
        (accelerator_config, "dispatch_batches", False, by_loader),
        (accelerator_config, "use_seedable_sampler", True, by_loader),
    ):
        if getattr(options, name, None) not in (None, wanted):
            raise ValueError(f"{name} must be {wanted}: {reason}")


def loss_kind(trainer: Any, batch: Any) -> str:
    """Return the kind of the loss for batches like this one, ``"mean"`` or ``"sum"``: the same on all ranks.

    A ``"sum"``, divided by the number of tokens of all ranks, suits any sizes. The loss of this rank's first batch is
    computed twice, without gradients and in evaluation mode.
    """
    if not takes_token_count(trainer) or not has_labels(batch):
        return "mean"
    # 0.5 where the loss is divided by tokens, 1 where it ignores them; ratios in bfloat16 are rounded by a hundredth
    ratio = _loss_ratio_at_double_count(trainer, batch)
    if ratio > 0.95:
        return "mean"
    if ratio > 0.505:
        warnings.warn(
            "A part of the loss is divided by the number of tokens of all ranks and a part is not, such as the loss of "
            "a router. Gradients are averaged plainly, as the Trainer does: in the second part, samples count more on "
            "ranks with few of them",
            BalanceWarning,
            stacklevel=2,
        )
    return "sum"


def takes_token_count(trainer: Any) -> bool:
    """Return whether the loss gets a number of tokens."""
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def has_labels(batch: Any) -> bool:
    """Return whether the Trainer can count the tokens of a batch."""
    return isinstance(batch, Mapping) and isinstance(batch.get("labels"), torch.Tensor)


def _loss_ratio_at_double_count(trainer: Any, batch: Any) -> float:
    """Return the ratio of the losses with twice the number of tokens and with the number itself, over all ranks."""
    training = trainer.model.training
    trainer.model.eval()  # no dropout, and no update of batch normalization's running statistics
    try:
        # a loss divided by the number of tokens halves with twice the number
        losses = []
        for count in (64.0, 128.0):
            inputs = trainer._prepare_inputs({**batch})  # a copy, because the Trainer removes labels from it
            items = torch.tensor(count, device=trainer.args.device)
            with torch.no_grad(), trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
            losses.append(loss.detach().double().mean())
    finally:
        trainer.model.train(training)
    once, twice = trainer.accelerator.gather(torch.stack(losses).nan_to_num()[None]).sum(0).tolist()
    return float(twice / once) if once else 0.5  # a zero loss shows nothing: assume what the Trainer assumes


STATE_FILE = "paceline.pt"
"""The file in a checkpoint's folder that holds the balancer's state."""

TrainerBase: Any = object
"""Base class of the mixin. It stands for a Trainer, which is not imported here."""


class BalancedTrainerMixin(TrainerBase):  # type: ignore[misc]  # it extends the Trainer that it is mixed into
    """A mixin that, put before a ``transformers.Trainer``, lets every rank's batch size follow its speed.

    ``per_device_train_batch_size`` becomes a mean over ranks, and a step equals that of one process on the global
    batch. A loss that is neither a mean over samples nor divided by the tokens of all ranks is scaled in
    ``compute_loss``: see ``docs/howto/trainers.md``. Checkpoints resume exactly.

    Parameters
    ----------
    *arguments, **options
        Arguments of the Trainer.
    balancing
        Options of :func:`paceline.torch.attach`, such as ``predictor`` or ``policy``.
    costs
        What samples cost, if they cost differently: a :class:`Costs`. It may name any column of ``train_dataset``.
    metrics
        Where to write metrics, as :func:`paceline.recording.sink` takes it: ``"run.jsonl"``, or a list.

    Attributes
    ----------
    balance
        The handle that ``attach`` returns, from the first batch of a training on.

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
        self._balance_options = dict(balancing or {})
        self._costs = costs
        self._sinks = sinks(*([metrics] if isinstance(metrics, str) else metrics))
        self._trainer_loader: Any = None  # a TrainerLoader, once training has begun
        self._loader_dataset: Any = None
        self._loader_sizes: tuple[int, ...] = ()
        self._attached_to: tuple[Any, ...] = ()
        self._has_labels, self._loss_kind = False, "mean"
        self._batches_left: int | None = None
        super().__init__(*arguments, **options)

    def get_train_dataloader(self) -> Any:
        """Return the balanced loader."""
        arguments = self.args
        sizes = (arguments.train_batch_size, arguments.gradient_accumulation_steps)
        if self._loader_dataset is not self.train_dataset or self._loader_sizes != sizes:
            require_supported_options(self, BalancedTrainerMixin)
            self._trainer_loader = TrainerLoader(self._make_loader(), self)
            self._loader_dataset, self._loader_sizes = self.train_dataset, sizes
        arguments.ignore_data_skip = True  # a resumed loader continues at its saved place by itself
        return self._trainer_loader

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute a micro-batch, and return its loss, weighted for the mean over the ranks that the Trainer logs."""
        balance = self.balance
        if balance is None:
            raise RuntimeError(
                f"{type(self).__name__} trains on batches that are not balanced: an override of get_train_dataloader "
                "must return what super().get_train_dataloader() returns"
            )
        share = self._trainer_loader.next_share()
        if takes_token_count(self) and (num_items_in_batch is not None) != self._has_labels:
            raise RuntimeError(
                "some batches have labels and some have none, so their losses need different weighting: the first "
                "batch of every rank must be like all others"
            )
        micro_batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        divisor = micro_batches if self._divides_loss(num_items_in_batch) else 1
        balance.loss_divisor = divisor
        log_weight = 1.0 if self._loss_kind == "sum" else share
        accelerator, backward = self.accelerator, self.accelerator.backward

        def weighted_backward(loss: torch.Tensor, **options: Any) -> None:
            nonlocal log_weight
            scaled = [] if loss.grad_fn is None else BackwardGraph([loss.grad_fn]).scaled
            if scaled:  # by a subclass; it is logged as it was before
                factor = scaled[0].factor * micro_batches / divisor
                log_weight = share / factor if factor else 0.0
            elif self._loss_kind == "sum":
                loss = balance.scale(loss)
            backward(loss, **options)

        accelerator.backward = weighted_backward
        try:
            return super().training_step(model, inputs, num_items_in_batch) * log_weight
        finally:
            accelerator.backward = backward

    def _divides_loss(self, num_items_in_batch: Any) -> bool:
        if (undivided := getattr(self, "loss_is_scaled_for_ga", None)) is not None:
            return not undivided
        by_tokens = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return not by_tokens and self.compute_loss_func is None

    def _make_loader(self) -> BalancedLoader:
        arguments = self.args
        if self.train_dataset is None:
            raise ValueError(
                "train_dataset must be a dataset with a length, got None: pass train_dataset to the Trainer"
            )
        costs = self._costs
        if costs is not None and costs.global_tokens is not None:
            raise ValueError("costs must not set global_tokens: the Trainer decides how many samples a step has")
        dataset, collate = self._dataset_and_collator()
        return BalancedLoader(
            dataset,
            arguments.train_batch_size * arguments.world_size,
            rank=arguments.process_index,
            world_size=arguments.world_size,
            shuffle=SHUFFLE_BY_STRATEGY[getattr(arguments, "train_sampling_strategy", "random")],
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            drop_last=arguments.dataloader_drop_last,
            accumulate=arguments.gradient_accumulation_steps,
            collate_fn=collate,
            **loader_options(arguments),
            # read here: the loader gets a dataset without the columns that the model does not take
            costs=None if costs is None else costs.read(self.train_dataset),
        )

    def _dataset_and_collator(self) -> tuple[Any, Any]:
        """Return the data set and its collator, without columns that the model does not take."""
        # Looked up, not imported: without `datasets` in memory, the data set cannot be one of its tables.
        table = getattr(sys.modules.get("datasets"), "Dataset", None)
        if table is not None and isinstance(self.train_dataset, table):  # unused columns are not even loaded
            return self._remove_unused_columns(self.train_dataset, description="training"), self.data_collator
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        return self.train_dataset, collate

    def _prepare_to_attach(self) -> None:
        """Prepare to attach at the first batch of a training; batches taken before training need no balance."""
        if not self.is_in_train or self._is_attached:
            return
        if self.balance is not None:
            self.balance.close()
        self._trainer_loader.loader.after_batch = self._attach_on_first_batch

    def _attach_on_first_batch(self, sizes_W: Any, batch: Any) -> None:
        """Attach the balancer when the first batch has arrived, and pass it this batch."""
        self._has_labels = has_labels(batch)
        self._attach("mean")
        self._loss_kind = loss_kind(self, batch)  # with the balance at hand, as a subclass may use it
        self._trainer_loader.loader.after_batch(sizes_W, batch)  # attach has replaced it with the balance's callback

    def _attach(self, loss_kind: str) -> None:
        self._loss_kind = loss_kind
        self._attached_to = (self.model_wrapped, self._trainer_loader.loader)
        self.balance = balance = attach(*self._attached_to, **self._balance_options)
        balance.on_iteration.extend(self._sinks)

    @property
    def _is_attached(self) -> bool:
        """True if the balancer is attached to the present model and loader: a new training may have new ones."""
        now = (self.model_wrapped, self._trainer_loader.loader)
        return self.balance is not None and all(old is new for old, new in zip(self._attached_to, now, strict=True))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.balance is None:
            return
        state = self.balance.state_dict()  # on every rank, because it receives pending reports from all of them
        kind = {"loss": self._loss_kind, "labeled": self._has_labels}
        if self.args.should_save:
            torch.save({**state, **kind}, Path(output_dir) / STATE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self._trainer_loader is None:
            return
        saved = Path(checkpoint) / STATE_FILE
        if not saved.is_file():
            raise FileNotFoundError(
                f"{checkpoint} has no {STATE_FILE}: it was saved with save_only_model=True, or by an unbalanced "
                "Trainer. Resume from another checkpoint, or start without resume_from_checkpoint"
            )
        state = torch.load(saved, weights_only=True)
        if not self._is_attached:
            self._attach(state["loss"])
        assert self.balance is not None
        self.balance.load_state_dict(state)
        self._has_labels = state["labeled"]
        self._note_batches_left(self._trainer_loader.loader)

    def _note_batches_left(self, loader: BalancedLoader) -> None:
        """Store how many batches are left in the current epoch: the Trainer derives the ends of its steps from it."""
        left, parts = len(loader) - loader.position[1], loader.accumulate
        if not 0 < left < len(loader):
            return
        if left % parts and not hasattr(super(), "_run_epoch"):
            raise ValueError(
                f"the epoch's last step has {left % parts} micro-batches instead of {parts}, and this version of "
                "transformers would skip it after resuming in the middle of an epoch: use version 5"
            )
        self._batches_left = left

    def _run_epoch(self, **options: Any) -> None:  # after resuming, it only has the remaining batches
        left, self._batches_left = self._batches_left, None
        if left is not None:
            steps = ceil(left / self.args.gradient_accumulation_steps)
            options |= {"steps_in_epoch": left, "num_update_steps_per_epoch": steps}
        super()._run_epoch(**options)


class TrainerLoader:
    """A balanced loader with the interface that the Trainer expects."""

    def __init__(self, loader: BalancedLoader, trainer: Any) -> None:
        self.loader, self.trainer = loader, trainer
        self._shares: deque[float] = deque()

    def __getattr__(self, name: str) -> Any:
        """Return what the loader itself has, such as ``dataset`` and ``set_epoch``."""
        return getattr(vars(self)["loader"], name)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; the Trainer takes all batches of a step before it computes the first."""
        self.trainer._prepare_to_attach()
        self._shares.clear()
        accelerator, send = self.trainer.accelerator, import_module("accelerate.utils").send_to_device
        for batch in self.loader:
            sizes_W = self.loader.batch_sizes
            self._shares.append(float(sizes_W[self.loader.rank]) * len(sizes_W) / float(sizes_W.sum()))
            yield send(batch, accelerator.device, non_blocking=getattr(accelerator, "non_blocking", False))

    def next_share(self) -> float:
        """Return the weight of the next batch to compute, relative to equal weights."""
        return self._shares.popleft()
