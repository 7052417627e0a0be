"""Changes to this library's own loaders while a script runs under audit: sizes and orders are the audit's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from paceline.audit.inside.patches import Patches, item_getter
from paceline.audit.inside.randomness import SeededBlock
from paceline.audit.inside.samples import digest, part_sizes
from paceline.audit.run import BalancedRun
from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.policy import Policy
from paceline.predictors import Forecast, LastValue, Report
from paceline.torch.assigner import EpochAssigner
from paceline.torch.loader import BalancedLoader
from paceline.torch.loading import ChunkDataset
from paceline.torch.rank_loader import RankLoader
from paceline.torch.stream_assigner import StreamAssigner
from paceline.torch.stream_loader import StreamLoader


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
    """Make the changes that this library's own loaders need."""
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
            recorder.count_batch(name)
            recorder.before_collating()
            return recorder.convert_batch(len(samples), collate(samples))

        original(loader, dataset, *arguments, **{**passed, "collate_fn": collate_and_count})
        facts_of[id(loader)] = facts = {"global_batch": loader.global_batch, "candidates": []}
        facts |= {"accumulate": loader.accumulate, "steps": 0}
        if isinstance(loader, BalancedLoader):
            numbers, facts["checksum"] = probe_candidates(recorder, dataset)
            facts["candidates"] = numbers if fixed else []
        recorder.record.facts.setdefault("balanced", []).append(facts)
        recorder.track_batch_sizes(loader)

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
