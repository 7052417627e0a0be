"""What packing by cost and speed gains in a real training: a small language model, two ranks, turns of one run.

python benchmarks/pack_live.py          # about ten minutes on an idle machine; writes pack_live.md
python benchmarks/pack_live.py --quick  # a minute; prints only

Axis: W ranks.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from machine import machine
from ranks import run_ranks
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from work_live import WORDS, spread, texts

from paceline.lab.processes import join_control_group, quota_placement

QUICK = "--quick" in sys.argv
ROUNDS, STEPS, WARM_UP = (2, 5, 10) if QUICK else (25, 8, 50)
"""Rounds, in each of which every scheme has a turn of so many steps; and steps of each scheme before them.

All are eight times the 25 steps whose samples transformers' sampler sorts at once.
"""

GLOBAL_BATCH, SAMPLES = 64, 4800
SHORTEST, LONGEST, CAP = 16, 1024, 1024
SCHEMES = ("group_by_length", "batch_rebalance", "equal shares", "pack")
WORLDS = {
    "asleep": "beside a little computing, ranks sleep 4 ms for a micro-batch, 60 µs for a token, and 60 ns for a pair "
    "of tokens of one sample; a slow one sleeps twice as long",
    "computing": "ranks compute; a slow one then sleeps as long as it has computed",
}
SLOWED = {"equal ranks": 1.0, "second rank at half speed": 2.0}
QUOTA = "computing, second rank has half a core"
"""Where this machine lets us make control groups, the second rank computes under a quota of half a core."""


class Model(torch.nn.Module):
    """One causal layer over packed rows: attention stays within each sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width = width
        self.tokens, self.places = torch.nn.Embedding(WORDS, width), torch.nn.Embedding(LONGEST, width)
        self.attention, self.next = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, WORDS)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        hidden = self.tokens(input_ids[0]) + self.places(position_ids[0])
        mixed = []
        for part in self.attention(hidden).split(lengths):
            query, key, value = part.view(1, len(part), 3, 2, self.width // 2).permute(2, 0, 3, 1, 4)
            attended = scaled_dot_product_attention(query, key, value, is_causal=True)
            mixed.append(attended.permute(0, 2, 1, 3).reshape(len(part), self.width))
        logits: torch.Tensor = self.next(hidden + torch.cat(mixed))
        return logits


def mean_loss(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Return the mean over the labels of a micro-batch, and how many these are."""
    labels = batch["labels"][0]
    logits = model(batch["input_ids"], batch["position_ids"], batch["cu_seq_lens_q"].diff().tolist())
    return cross_entropy(logits, labels, ignore_index=-100), int((labels != -100).sum())


def under_cap(samples: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return micro-batches of samples in falling order of length, each filled until the next does not fit."""
    filled: list[list[torch.Tensor]] = [[]]
    for sample in sorted(samples, key=len, reverse=True):
        if sum(map(len, filled[-1])) + len(sample) > CAP:
            filled.append([])
        filled[-1].append(sample)
    return filled


class Rival:
    """Micro-batches of a sampler of transformers, which chooses a rank's samples: filled in order of length."""

    step_ends = True

    def __init__(self, scheme: str, data: list[torch.Tensor], rank: int) -> None:
        from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler

        self.data, self.rank, self.scheme = data, rank, scheme
        lengths = [len(text) for text in data]
        if scheme == "batch_rebalance":
            self.sampler: Any = BatchRebalanceSampler(lengths, GLOBAL_BATCH, 2, 1, rank=rank)
        else:
            chance = torch.Generator().manual_seed(0)
            self.sampler = LengthGroupedSampler(GLOBAL_BATCH // 2, lengths=lengths, generator=chance)

    def _chosen(self) -> Iterator[list[int]]:
        if self.scheme == "batch_rebalance":
            yield from self.sampler
            return
        order, size = list(self.sampler), GLOBAL_BATCH // 2
        for first in range(self.rank * size, len(order) - size * (2 - self.rank) + 1, GLOBAL_BATCH):
            yield order[first : first + size]  # as Accelerate shards batches: rank r has every W-th

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from paceline.torch import Flatten

        collate = Flatten(cu_seqlens=True, shift=True)
        for chosen in self._chosen():
            parts = under_cap([self.data[number] for number in chosen])
            for number, part in enumerate(parts, 1):
                self.step_ends = number == len(parts)
                yield collate(part)


class Contestant:
    """One scheme's training, which can be stopped and resumed between any two steps."""

    def __init__(self, scheme: str, data: list[torch.Tensor], rank: int, world: str, factor: float) -> None:
        from paceline.coordinator import Policy
        from paceline.torch import BalancedLoader, Costs, Flatten, attach

        self.model = DistributedDataParallel(Model(16 if world == "asleep" else 128))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.world, self.factor = world, factor if rank else 1.0
        self.tokens, self.balance = 0, None
        self.loader: Any = Rival(scheme, data, rank) if scheme in SCHEMES[:2] else None
        if self.loader is None:
            costs = Costs(lengths=[len(text) for text in data], cap=CAP)
            collate = Flatten(cu_seqlens=True, shift=True)
            self.loader = BalancedLoader(data, GLOBAL_BATCH, costs=costs, pack=True, collate_fn=collate, drop_last=True)
            policy = Policy(warmup=2**40) if scheme == "equal shares" else None
            self.balance = attach(self.model, self.loader, policy=policy)
        self._steps = self._train()

    def step(self) -> None:
        """Train for one step."""
        next(self._steps)

    def _train(self) -> Iterator[None]:
        count = 0
        while True:
            for batch in self.loader:
                began, step_ends = time.thread_time(), self.loader.step_ends
                self.model.require_backward_grad_sync = step_ends
                loss, terms = mean_loss(self.model, batch)
                count += terms
                self.tokens += batch["input_ids"].numel()
                loss = loss * terms if self.balance is None else self.balance.scale(loss, terms)
                if self.world == "asleep":
                    lengths = batch["cu_seq_lens_q"].diff().double()
                    time.sleep(self.factor * float(4e-3 + 6e-5 * lengths.sum() + 6e-8 * lengths.square().sum()))
                elif self.factor > 1:  # forward and backward pass cost about one and two thirds
                    time.sleep((self.factor - 1) * 3 * (time.thread_time() - began))
                loss.backward()
                if not step_ends:
                    continue
                if self.balance is None:
                    total = torch.tensor(float(count))
                    dist.all_reduce(total)
                    torch._foreach_mul_([one.grad for one in self.model.parameters()], 2 / float(total))
                self.optimizer.step()
                self.optimizer.zero_grad()
                count = 0
                yield


def compete(data: list[torch.Tensor], rank: int, world: str, factor: float) -> list[tuple[str, float, float]]:
    """Return each turn's scheme, its tokens of both ranks per second, and a rank's CPU seconds per token of its own."""
    contestants = {scheme: Contestant(scheme, data, rank, world, factor) for scheme in SCHEMES}
    for one in contestants.values():
        for _ in range(WARM_UP):
            one.step()
    rates = []
    for seed in range(ROUNDS):
        for scheme in random.Random(seed).sample(SCHEMES, len(SCHEMES)):
            one = contestants[scheme]
            dist.barrier()
            before, begin, cpu = one.tokens, time.perf_counter(), time.thread_time()
            for _ in range(STEPS):
                one.step()
            seconds = time.perf_counter() - begin
            done = torch.tensor([float(one.tokens - before), time.thread_time() - cpu])
            dist.all_reduce(done)
            rates.append((scheme, float(done[0]) / seconds, float(done[1] / done[0])))
    for one in contestants.values():
        if one.balance is not None:
            one.balance.close()
    return rates


def train(rank: int, put: Callable[[dict[str, Any]], None], place: Sequence[str] | None) -> None:
    """Run one rank; the second one ends in a place with a quota, if there is one."""
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    warnings.filterwarnings("ignore", message="A further model")  # each scheme has one
    data = random.Random(0).sample(texts(WORDS, LONGEST, SHORTEST), SAMPLES)
    result = {
        f"{world}, {name}": compete(data, rank, world, factor) for world in WORLDS for name, factor in SLOWED.items()
    }
    if place is not None:
        if rank:
            join_control_group(place)
        result[QUOTA] = compete(data, rank, "computing", 1.0)
    if rank == 0:
        put(result)


ABOUT = f"""Two ranks train a small causal language model on functions of Python's library, cut at {LONGEST:,} words;
{GLOBAL_BATCH} samples of both ranks in a step, in micro-batches of at most {CAP:,} tokens. All schemes concatenate
samples, sum gradients once in a step, and weigh every token alike. {ROUNDS} rounds, in each of which every scheme has a
turn of {STEPS} steps in an order drawn at random. Figures are ratios of tokens per second of wall time in the same
round: geometric means with the half-width of their 95% confidence interval.

- *group_by_length*: transformers' sampler, which puts samples of about one length into a batch; ranks have as many.
- *batch_rebalance*: transformers' sampler, which divides a global batch by known costs.
- *equal shares*: `pack=True` with learned costs, and equal shares: packing that ignores speed.
- *pack*: `pack=True` as it is."""


LINES = "\n"

BUSY = """
A slow rank in *computing* sleeps by its CPU time. Where other work runs, as the load average shows, computing takes
longer than that, so such a rank is less than twice as slow, and times vary more. With *half a core* the second rank
computes under a quota of a control group."""


def page(result: dict[str, Any], about: str) -> str:
    rivals, behind, level, ratios, costs = SCHEMES[:-1], [], [], [], []
    for name, turns in result.items():
        rates = {scheme: np.array([rate for own, rate, _ in turns if own == scheme]) for scheme in SCHEMES}
        cells = []
        for rival in rivals:
            mean, half = spread(np.log(rates["pack"] / rates[rival]))
            cells.append(f"{math.exp(mean):.2f} ± {math.exp(mean) * half:.2f}")
            if mean <= half:
                (behind if mean < -half else level).append(f"{rival} in *{name}*")
        ratios.append(f"| {name} | {' | '.join(cells)} |")
        of_cpu = [np.median([cpu for own, _, cpu in turns if own == scheme]) for scheme in SCHEMES]
        costs.append(f"| {name} | {' | '.join(f'{1e6 * cost:.1f}' for cost in of_cpu)} |")
    return f"""# Packing, live

Command: `python benchmarks/pack_live.py`

{about}

{ABOUT}

{LINES.join(f"- *{world}*: {sentence}." for world, sentence in WORLDS.items())}
{BUSY}

| setting | {" | ".join(f"*pack* over *{one}*" for one in rivals)} |
| --- |{" --- |" * len(rivals)}
{LINES.join(ratios)}

Microseconds of a core for each token, medians: computing, loading and planning, whatever else runs.

| setting | {" | ".join(SCHEMES)} |
| --- |{" --- |" * len(SCHEMES)}
{LINES.join(costs)}

Behind: {"; ".join(behind) or "no scheme"}.

Not told apart from: {"; ".join(level) or "no scheme"}.
"""


def main() -> None:
    about = f"Machine: {machine('torch', 'transformers')}; load average {os.getloadavg()[0]:.1f} at the start."
    with quota_placement(0.5) as place:
        (result,) = run_ranks(2, train, place, answers=1)
    text = page(result, about)
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
