"""Changes to torch, and to this library's own loaders, while a script runs under audit, and the way back.

Scripts stay as they are, so what they call is changed beneath them: data loaders hand out what the recorder says,
optimizers report their steps, dropout does nothing, clipping is left as it is, models are made double. Sizes and orders
of balanced loaders are the audit's.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import count, islice
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, default_collate
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch.utils.hooks import RemovableHandle

from paceline.audit.inside.randomness import LIBRARY_PACKAGES, SeededBlock, seed_script
from paceline.audit.inside.samples import digest, part_sizes
from paceline.audit.inside.step_recorder import StepRecorder
from paceline.audit.run import RANDINT_STREAM, BalancedRun
from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.policy import Policy
from paceline.predictors import Forecast, LastValue, Report
from paceline.torch.assigner import EpochAssigner
from paceline.torch.loader import BalancedLoader
from paceline.torch.loading import ChunkDataset
from paceline.torch.rank_loader import RankLoader
from paceline.torch.stream_assigner import StreamAssigner
from paceline.torch.stream_loader import StreamLoader

INTERNAL_DATASETS_MODULE = "paceline.torch.loading"
"""Module of what a balanced loader's own loading processes load: the balanced loader is looked at, not this."""


class Patches:
    """The changes for one recorder, to which they report; None where only dropout is disabled."""

    def __init__(self, recorder: StepRecorder | None) -> None:
        self.recorder: Any = recorder
        self.undo_stack = ExitStack()
        self._streams: dict[int, tuple[Any, str]] = {}

    def apply(self, seed: int) -> None:
        seed_script(self, seed)
        self._patch_data_loaders()
        self._patch_optimizer_steps()
        self.disable_dropout()
        self._patch_losses()
        if self.recorder.plan.frozen_parameters:
            self._disable_clipping()
        if not self.recorder.plan.hooks:
            self.replace(torch.Tensor, "register_hook", ignore_parameter_hooks)
        if self.recorder.plan.precision == "float64":
            self._use_float64()
        patch_balanced_loaders(self)

    def replace(self, owner: Any, attribute: str, wrap: Callable[[Any], Any]) -> None:
        before = vars(owner).get(attribute, getattr(owner, attribute))
        setattr(owner, attribute, wrap(before))
        self.undo_stack.callback(setattr, owner, attribute, before)

    def wrap(self, owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Let ``wrapper(original, ...)`` run where a function is called."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def call(*arguments: Any, **options: Any) -> Any:
                return wrapper(original, *arguments, **options)

            return call

        self.replace(owner, attribute, make)

    # -- random numbers --------------------------------------------------------------------------------------------

    def disable_dropout(self) -> None:
        """Disable dropout: which values it drops depends on the sample's position."""
        functional: Any = torch.nn.functional
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
            self.wrap(functional, name, lambda original, input, *_, **options: input)  # noqa: A006 - torch's own name
        self.wrap(functional, "scaled_dot_product_attention", attention_without_dropout)
        for layer in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):  # each has a forward pass of its own
            self.wrap(layer, "forward", recurrent_without_dropout)

    # -- samples ---------------------------------------------------------------------------------------------------

    def _patch_data_loaders(self) -> None:
        self.wrap(DataLoader, "__init__", init_without_workers)
        self.wrap(_SingleProcessDataLoaderIter, "__init__", self._init_iterator)
        self.wrap(torch, "randint", self._randint)

    def _init_iterator(self, original: Any, iterator: Any, loader: Any) -> None:
        original(iterator, loader)
        if type(loader.dataset).__module__ != INTERNAL_DATASETS_MODULE:
            fetcher = iterator._dataset_fetcher  # torch's own, and the only place where samples are apart
            fetcher.fetch = functools.partial(self._fetch_batch, fetcher, loader)

    def _fetch_batch(self, fetcher: Any, loader: Any, index: Any) -> Any:
        """Load a batch as torch's fetchers do, but with the samples that the recorder says."""
        if not torch.is_grad_enabled():  # an evaluation
            return type(fetcher).fetch(fetcher, index)
        self._record_sampler(loader)
        if self._stream_name(loader) not in self.recorder.record.streams:
            self.recorder.record.facts.setdefault("lengths", {})[self._stream_name(loader)] = length_hint(loader)
        dataset, together = fetcher.dataset, fetcher.auto_collation
        collate = fetcher.collate_fn if together else lambda samples: fetcher.collate_fn(samples[0])
        numbers: list[Any] = list(index) if together else [index]
        get = item_getter(dataset)
        if hasattr(fetcher, "dataset_iter"):
            loaded = self._next_stream_samples(fetcher, index) if together else [next(fetcher.dataset_iter)]
            numbers, get = list(range(len(loaded))), loaded.__getitem__
        samples = self.recorder.fetch_samples(self._stream_name(loader), dataset, numbers, get)
        return self.recorder.convert_batch(len(samples), collate(samples))

    @staticmethod
    def _next_stream_samples(fetcher: Any, index: Any) -> list[Any]:
        loaded = [] if fetcher.ended else list(islice(fetcher.dataset_iter, len(index)))
        fetcher.ended = len(loaded) < len(index)
        if not loaded or (fetcher.drop_last and len(loaded) < len(index)):
            raise StopIteration
        return loaded

    def _stream_name(self, loader: Any) -> str:
        """Return the name of a loader's samples, the same on every rank: loaders are numbered as they are used."""
        if id(loader) not in self._streams:
            # with the loader, so that no other gets its id
            self._streams[id(loader)] = loader, f"{type(loader.dataset).__name__} {len(self._streams)}"
        return self._streams[id(loader)][1]

    def _record_sampler(self, loader: Any) -> None:
        sampler: Any = getattr(loader, "sampler", None)
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", sampler)
        if isinstance(sampler, DistributedSampler):
            order = [sampler.num_replicas, sampler.rank, bool(sampler.shuffle), sampler.seed, sampler.epoch]
            self.recorder.record.facts.setdefault("samplers", {})[self._stream_name(loader)] = order

    def _randint(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Treat a row of whole numbers that a script draws to train on as numbers of samples."""
        recorder = self.recorder
        counted = torch.is_grad_enabled() and "generator" not in options and recorder.draws_are_samples
        if not counted and not recorder.is_evaluating():
            return original(*arguments, **options)
        recorder.check_other_draws()
        recorder.check_random_draws()
        values = original(*arguments, **options)
        recorder.ignore_last_draw()
        if not counted or values.dim() != 1:
            return values
        stream = f"{RANDINT_STREAM} {arguments} {sorted(options)}"
        samples = recorder.fetch_samples(stream, range(2**62), values.tolist(), int)
        return torch.tensor(samples, dtype=values.dtype, device=values.device)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _patch_optimizer_steps(self) -> None:
        recorder, modules = self.recorder, torch.nn.Module

        def named_parameters(original: Any, module: Any, *arguments: Any, **options: Any) -> Any:
            recorder.parameter_names.add_module(module)
            return original(module, *arguments, **options)

        recorder.plain_named_parameters = modules.named_parameters
        self.wrap(modules, "named_parameters", named_parameters)

        def before_optimizer_step(optimizer: Any, arguments: Any, options: Any) -> Any:
            def wrap_closure(closure: Any) -> Any:
                def run_closure() -> Any:
                    loss = closure()
                    recorder.after_closure(optimizer)
                    return loss

                return run_closure if callable(closure) else closure

            recorder.before_step(optimizer, any(callable(one) for one in [*arguments[1:], *options.values()]))
            closures = {name: wrap_closure(option) for name, option in options.items()}
            return (*arguments[:1], *map(wrap_closure, arguments[1:])), closures

        before = register_optimizer_step_pre_hook(before_optimizer_step)
        after = register_optimizer_step_post_hook(lambda optimizer, *_: recorder.after_step(optimizer))
        self.undo_stack.callback(before.remove)
        self.undo_stack.callback(after.remove)

    def _patch_losses(self) -> None:
        """Note the means that losses return, and the numbers whose gradients are taken."""
        seen: list[torch.Tensor] = []

        def record_loss(original: Any, *arguments: Any, **options: Any) -> Any:
            found = original(*arguments, **options)
            if isinstance(found, torch.Tensor) and found.dim() == 0 and found.requires_grad:
                seen.append(found.detach())
            return found

        for name in [
            *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
            *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
        ]:
            self.wrap(torch.nn.functional, name, record_loss)

        def backward_and_record(original: Any, tensor: Any, *arguments: Any, **options: Any) -> None:
            if tensor.numel() == 1 and seen:
                self.recorder.record_facts(ratio=float(tensor.detach()) / (float(sum(seen)) or float("nan")))
            seen.clear()
            original(tensor, *arguments, **options)
            self.recorder.after_backward()

        self.wrap(torch.Tensor, "backward", backward_and_record)

    def _disable_clipping(self) -> None:
        def measure_norm(original: Any, parameters: Any, max_norm: float, *arguments: Any, **options: Any) -> Any:
            return original(parameters, 1e300, *arguments, **options)

        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            self.wrap(owner, "clip_grad_norm_", measure_norm)
            self.wrap(owner, "clip_grad_value_", lambda *arguments, **options: None)

    # -- precision -------------------------------------------------------------------------------------------------

    def _use_float64(self) -> None:
        self.undo_stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)

        def init_in_float64(original: Any, wrapper: Any, module: Any, *arguments: Any, **options: Any) -> None:
            original(wrapper, module.double(), *arguments, **options)

        def init_disabled(original: Any, *arguments: Any, **options: Any) -> None:
            original(*arguments, **{**options, "enabled": False})

        self.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", init_in_float64)
        self.wrap(torch.autocast, "__init__", init_disabled)


@contextmanager
def no_dropout() -> Iterator[None]:
    patches = Patches(None)
    with patches.undo_stack:
        patches.disable_dropout()
        yield


def item_getter(dataset: Any) -> Callable[[Any], Any]:
    many = getattr(dataset, "__getitems__", None)
    return (lambda number: many([number])[0]) if many else dataset.__getitem__


def ignore_parameter_hooks(original: Any) -> Any:
    """Return a ``register_hook`` that leaves out the script's own hooks on parameters."""

    def register_hook(tensor: Any, hook: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not isinstance(tensor, torch.nn.Parameter) or caller.partition(".")[0] in LIBRARY_PACKAGES:
            return original(tensor, hook)
        return RemovableHandle(OrderedDict())

    return register_hook


def recurrent_without_dropout(original: Any, layer: Any, *arguments: Any, **options: Any) -> Any:
    rate, layer.dropout = layer.dropout, 0.0
    try:
        return original(layer, *arguments, **options)
    finally:
        layer.dropout = rate


def attention_without_dropout(original: Any, *arguments: Any, **options: Any) -> Any:
    if "dropout_p" in options:
        options["dropout_p"] = 0.0
    return original(*arguments[:4], *(0.0 for _ in arguments[4:5]), *arguments[5:], **options)


def init_without_workers(original: Any, *arguments: Any, **options: Any) -> None:
    bound = inspect.signature(original).bind(*arguments, **options)
    if type(bound.arguments.get("dataset")).__module__ != INTERNAL_DATASETS_MODULE:
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            bound.arguments.pop(name, None)
    original(*bound.args, **bound.kwargs)


# -- balanced loaders -----------------------------------------------------------------------------------------------


class _RandomSpeeds(LastValue):
    """A predictor to which the workers seem to have other speeds in every iteration, the same on every rank."""

    seen = 0

    def observe(self, report: Report) -> None:
        super().observe(report)
        self.seen += 1

    def predict(self, *, covariates: Any = None, horizon: int = 1) -> Forecast:
        """Return speeds that differ by up to a factor of three."""
        count = len(self.workers)
        return Forecast(np.random.default_rng(self.seen).uniform(1, 3, count), np.full(count, 1e-3))

    def load_state_dict(self, state: Any) -> None:
        """Take over the workers alone: a script may resume from a checkpoint that holds another predictor's state."""
        self.reset([str(worker) for worker in state.get("workers", self.workers)])


class _ShuffledOrder:
    """An order of samples whose blocks, the global batches of a step, are mixed, or replaced."""

    def __init__(self, order: Any, loader: Any, batch: int, plan: BalancedRun) -> None:
        self.order, self.loader, self.batch, self.plan = order, loader, batch, plan

    def __len__(self) -> int:
        return len(self.order)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.order, name)

    def epoch_indices(self, epoch: int, ranks: int = 1) -> Any:
        numbers = self.order.epoch_indices(epoch, ranks).copy()
        block = self.batch * self.loader.accumulate  # only now: trainers set it after they made the loader
        for first in range(0, len(numbers) - block + 1, block):
            if self.plan.seed:
                chance = np.random.default_rng([self.plan.seed, epoch, first])
                numbers[first : first + block] = chance.permutation(numbers[first : first + block])
        planned = [number for step in self.plan.step_samples for number in step][: len(numbers)]
        numbers[: len(planned)] = planned
        return numbers


class _ShuffledStream:
    """A stream whose blocks are mixed.

    If samples are known by a key, what is drawn for them may differ from rank to rank: it follows their place.
    """

    seeded = False

    def __init__(self, stream: Any, block: int, seed: int) -> None:
        self.stream, self.block, self.seed = stream, block, seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Iterator[Any]:
        samples = self._samples()
        for first in range(2**62):
            block = list(islice(samples, self.block))
            if not block:
                return
            mixes = self.seed and len(block) == self.block
            order = np.random.default_rng([self.seed, first]).permutation(len(block)) if mixes else range(len(block))
            yield from (block[number] for number in order)

    def _samples(self) -> Iterator[Any]:
        samples, end = iter(self.stream), object()
        for place in count():
            with SeededBlock(f"stream {place}") if self.seeded else nullcontext():
                sample = next(samples, end)
            if sample is end:
                return
            yield sample


def patch_balanced_loaders(patches: Patches) -> None:
    recorder = patches.recorder
    plan = recorder.plan.balanced or BalancedRun()
    begun: dict[str, Any] = {}  # the loader that is made now, and whether its batches have a fixed number of samples
    facts_of: dict[int, dict[str, Any]] = {}  # what the record says of each loader

    def init_balancer(original: Any, balancer: Any, predictor: Any, **options: Any) -> None:
        policy = options.get("policy") or Policy()
        if plan.uneven_sizes:
            free = replace(policy, warmup=0, change_cost=0.0, risk=0.0, batch_multiple=1)
            original(balancer, _RandomSpeeds(), **{**options, "policy": free})
        else:
            original(balancer, predictor, **{**options, "policy": replace(policy, warmup=10**9)})

    def init_assigner(original: Any, assigner: Any, order: Any, batch: Any, *arguments: Any, **options: Any) -> None:
        mixed = _ShuffledOrder(order, begun["loader"], batch.samples, plan) if begun["fixed"] else order
        original(assigner, mixed, batch, *arguments, **options)

    def init_stream_assigner(original: Any, assigner: Any, stream: Any, batch: Any, *arguments: Any) -> None:
        window = arguments[2]  # after the rank and the costs
        mixed = _ShuffledStream(stream, batch.samples, plan.seed if window == 1 else 0)
        original(assigner, mixed, batch, *arguments)
        mixed.seeded = assigner.key is not None

    def init_loader(original: Any, loader: Any, dataset: Any, *arguments: Any, **options: Any) -> None:
        fixed = getattr(options.get("costs"), "global_tokens", None) is None
        begun.update(loader=loader, fixed=fixed)
        of_processes = {"num_workers", "prefetch_factor", "multiprocessing_context", "timeout"}
        passed = {name: value for name, value in options.items() if name not in of_processes}
        name = f"balanced loader {len(recorder.record.facts.get('balanced', []))}"
        collate = options.get("collate_fn") or default_collate

        def collate_and_count(samples: list[Any]) -> Any:
            recorder.batch_counts[name] += 1
            recorder.before_collating()
            return recorder.convert_batch(len(samples), collate(samples))

        original(loader, dataset, *arguments, **{**passed, "collate_fn": collate_and_count})
        facts_of[id(loader)] = facts = {"global_batch": loader.global_batch, "candidates": []}
        facts |= {"accumulate": loader.accumulate, "steps": 0}
        if isinstance(loader, BalancedLoader):
            numbers, facts["checksum"] = probe_candidates(recorder, dataset)
            facts["candidates"] = numbers if fixed else []
        recorder.record.facts.setdefault("balanced", []).append(facts)
        recorder.balanced_loaders.append(loader)

    def begin_loop(original: Any, loader: Any, loop: Any) -> None:
        facts_of[id(loader)] |= {"accumulate": loader.accumulate, "steps": count_full_steps(loader)}
        original(loader, loop)

    def load_chunk(original: Any, chunks: Any, indices: Any) -> Any:
        get = item_getter(chunks.dataset)
        return chunks.collate([recorder.load_sample("balanced", number, get) for number in indices.tolist()])

    patches.wrap(ChunkDataset, "load", load_chunk)
    patches.wrap(LoadBalancer, "__init__", init_balancer)
    patches.wrap(EpochAssigner, "__init__", init_assigner)
    patches.wrap(StreamAssigner, "__init__", init_stream_assigner)
    patches.wrap(BalancedLoader, "__init__", init_loader)
    patches.wrap(StreamLoader, "__init__", init_loader)
    patches.wrap(RankLoader, "begin", begin_loop)


def count_full_steps(loader: Any) -> int:
    """Return the steps of an epoch whose batches are all full; 0 for a stream."""
    order = getattr(loader._assigner, "order", ())
    full, rest = divmod(len(order), loader.global_batch)
    full -= 0 < rest < loader.world_size  # so small a rest joins the last full batch
    return int(full // loader.accumulate)


def probe_candidates(recorder: Any, dataset: Any) -> tuple[list[tuple[int, dict[str, int]]], int | None]:
    """Return the numbers of some samples with the sizes of their parts, and their checksum, None where they change."""
    with torch.no_grad():
        known, again = (
            [recorder.load_sample("balanced", k, item_getter(dataset)) for k in range(min(len(dataset), 64))]
            for _ in range(2)
        )
    checksum, other = (
        digest([digest(one, number) for number, one in enumerate(samples)]) for samples in (known, again)
    )
    return [(number, part_sizes(one)) for number, one in enumerate(known)], checksum if checksum == other else None
