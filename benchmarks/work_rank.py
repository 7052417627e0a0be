"""One rank of benchmarks/work_live.py: trains a small language model for every scheme in turn. Axis: W ranks."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

GLOBAL_BATCH = 64
LONGEST = 384
WORDS = 512
SCHEMES = ("random", "batch_rebalance", "speed", "cost", "both", "clairvoyant")
SPEEDS = {"none": (1.0, 0), "quota": (0.5, 0), "bursty": (0.25, 20)}
"""For each disturbance the speed of the second rank, and the mean steps of a burst and of the calm between two."""

WARM_UP = 20
"""Steps of every scheme before the first turn: more than a policy's own warm-up."""

STEPS = 20
"""Steps of a turn."""


@dataclass(frozen=True)
class Told:
    """What a rank is told: who it is, how it is disturbed, and whose turn comes when, with the seed of its bursts."""

    rank: int
    folder: str
    contention: str
    turns: list[tuple[str, int]]


class OwnTime:
    """A clock that runs while this rank's training thread computes, slower ranks' faster: other jobs do not move it."""

    def __init__(self) -> None:
        self.speed = 1.0
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._read, self._now = self._cpu(), 0.0

    def _cpu(self) -> float:
        return time.clock_gettime_ns(self._clock) * 1e-9

    def __call__(self) -> float:
        """Return the time in seconds, from whatever thread."""
        read = self._cpu()
        self._now += (read - self._read) / self.speed
        self._read = read
        return self._now


def speeds_of(contention: str, seed: int, steps: int = STEPS) -> list[float]:
    """Return the second rank's speed in each step of a turn: the same for every scheme."""
    slow, mean = SPEEDS[contention]
    if not mean:
        return [slow] * steps
    chance, on, speeds = random.Random(seed), bool(seed % 2), []
    for _ in range(steps):
        speeds.append(slow if on else 1.0)
        on ^= chance.random() < 1 / mean
    return speeds


def texts() -> list[Any]:
    """Return functions of Python's own library, as numbers of words."""
    import ast
    import re
    import sysconfig
    import zlib

    import torch

    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        found += [re.findall(rb"\w+", b"".join(lines[node.lineno - 1 : node.end_lineno])) for node in nodes]
    words = [[zlib.crc32(word) % WORDS for word in text[: LONGEST + 1]] for text in found]
    return [torch.tensor(text) for text in words if len(text) > 1]


def model() -> Any:
    import torch
    from torch import nn

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(WORDS, 48), nn.Embedding(LONGEST, 48)
            self.layer = nn.TransformerEncoderLayer(48, nhead=4, dim_feedforward=96, dropout=0, batch_first=True)
            self.next = nn.Linear(48, WORDS)

        def forward(self, inputs: Any) -> Any:
            length = inputs.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            hidden = self.tokens(inputs) + self.places(torch.arange(length))
            return self.next(self.layer(hidden, mask, is_causal=True))

    torch.manual_seed(0)
    return Words()


def collate(samples: list[Any]) -> tuple[Any, Any]:
    from torch.nn.utils.rnn import pad_sequence

    inputs = pad_sequence([sample[:-1] for sample in samples], batch_first=True)
    return inputs, pad_sequence([sample[1:] for sample in samples], batch_first=True, padding_value=-100)


class Contestant:
    """One scheme's training, which can be stopped and resumed between any two steps."""

    def __init__(self, scheme: str, told: Told, data: list[Any], profiled: np.ndarray, clock: OwnTime) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.scheme, self.told, self.data, self.clock = scheme, told, data, clock
        self.model = DistributedDataParallel(model())
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self.slow = 1.0
        self.lengths = np.array([len(text) - 1 for text in data], dtype=np.float64)
        self.loader, self.balance = self._loader(scheme, profiled)
        self._steps = self._train()

    def _loader(self, scheme: str, profiled: np.ndarray) -> tuple[Any, Any]:
        from paceline.coordinator.torch import BalancedLoader, attach
        from paceline.predictors import Auto

        if scheme == "batch_rebalance":
            from torch.utils.data import DataLoader
            from transformers.trainer_pt_utils import BatchRebalanceSampler

            lengths = self.lengths.astype(int).tolist()
            sampler = BatchRebalanceSampler(lengths, GLOBAL_BATCH, 2, 1, rank=self.told.rank)
            return DataLoader(self.data, batch_sampler=sampler, collate_fn=collate), None
        about: dict[str, Any] = {}
        if scheme in ("cost", "both"):
            about = {"lengths": self.lengths, "items": self.lengths, "padded": True}
        if scheme == "clairvoyant":
            about = {"cost": profiled, "items": self.lengths, "padded": True}
        loader = BalancedLoader(self.data, GLOBAL_BATCH, collate_fn=collate, **about)
        balance = None
        if scheme in ("speed", "both", "cost"):
            from paceline.coordinator.policy import Policy

            policy = Policy(warmup=2**40) if scheme == "cost" else None
            balance = attach(self.model, loader, predictor=Auto(), policy=policy)
            balance._clock._marks.mark = self.clock  # reports are about this clock
        return loader, balance

    def step(self, slow: float) -> None:
        """Train for one step, in which the second rank is this fast."""
        self.slow = slow
        self.clock()
        self.clock.speed = slow if self.told.rank else 1.0
        if self.scheme == "clairvoyant":
            share = round(GLOBAL_BATCH * slow / (1 + slow))
            self.loader.sizes = np.array([GLOBAL_BATCH - share, share])
        began = self.clock()
        next(self._steps)
        self.seconds.append(self.clock() - began)

    def _train(self) -> Iterator[None]:
        import torch
        from torch.nn.functional import cross_entropy

        while True:
            for inputs, labels in self.loader:
                self.optimiser.zero_grad()
                cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten()).backward()
                self.optimiser.step()
                self.tokens.append(int(torch.count_nonzero(labels != -100)))
                yield

    def cost_error(self, profiled: np.ndarray) -> float | None:
        """Return how far learned costs are from the profiled ones, in the mean, weighed by cost."""
        if self.scheme != "both":
            return None
        from paceline.coordinator.work import sum_of_products

        columns = np.stack([self.lengths, self.lengths**2, np.ones_like(self.lengths)], axis=1)
        cost = sum_of_products(columns / columns.mean(axis=0), self.balance.work.coefficients)
        true = profiled / profiled.mean()
        return float(np.abs(cost / cost.mean() - true).sum() / true.sum())


def profile(data: list[Any]) -> np.ndarray:
    """Return what each sample costs alone on this core: seconds of a padded batch, per sample, by its length."""
    import torch
    from torch.nn.functional import cross_entropy

    net, lengths, seconds = model(), (8, 32, 64, 128, 256, 384), []
    for length in lengths:
        inputs = torch.zeros(16, length, dtype=torch.int64)
        taken = []
        for _ in range(6):
            began = time.thread_time()
            cross_entropy(net(inputs).flatten(0, 1), inputs.flatten()).backward()
            taken.append(time.thread_time() - began)
        seconds.append(min(taken) / 16)
    wide = np.array([len(text) - 1 for text in data], dtype=np.float64)
    fit = np.polyfit(lengths, seconds, 2, w=1 / np.array(seconds))
    return np.maximum(np.polyval(fit, wide), min(seconds) / 4)


def work() -> None:
    """Run one rank: the first line of the standard input tells what to do."""
    told = Told(**json.loads(sys.stdin.readline()))
    import torch
    from torch import distributed

    from paceline.lab.processes.orphan import die_with_parent

    die_with_parent()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{told.folder}/rendezvous", rank=told.rank, world_size=2)
    data = texts()
    costs = torch.tensor(profile(data))
    distributed.broadcast(costs, src=0)  # every rank must divide by the same
    clock = OwnTime()
    contestants = {scheme: Contestant(scheme, told, data, costs.numpy(), clock) for scheme in SCHEMES}
    for contestant in contestants.values():
        for slow in speeds_of(told.contention, 0, WARM_UP):
            contestant.step(slow)
    turns = []
    for scheme, seed in told.turns:
        one = contestants[scheme]
        for slow in speeds_of(told.contention, seed):
            one.step(slow)
        error = one.cost_error(costs.numpy())
        turns.append(
            {"scheme": scheme, "seconds": one.seconds[-STEPS:], "tokens": sum(one.tokens[-STEPS:]), "cost_error": error}
        )
    (Path(told.folder) / f"result{told.rank}.json").write_text(json.dumps(turns))
    distributed.destroy_process_group()


if __name__ == "__main__":
    work()
    os._exit(0)  # threads of torch may outlive the interpreter and abort a process whose work is done
