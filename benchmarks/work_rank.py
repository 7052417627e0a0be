"""One rank of benchmarks/work_live.py: trains a small language model for every scheme in turn. Axis: W ranks."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

GLOBAL_BATCH = 64
LONGEST = 384
WORDS = 512
SCHEMES = ("random", "batch_rebalance", "speed", "cost", "both", "oracle")
CONTENTIONS = ("none", "quota", "bursty")
"""Disturbances of ``paceline.lab``, which benchmarks/live.py has too."""


@dataclass(frozen=True)
class Told:
    """What a rank is told: who it is, how it is disturbed, and whose turn comes when, with the seed of its bursts."""

    rank: int
    folder: str
    contention: str
    turns: list[tuple[str, int]]
    seconds: float
    warm_up: int
    core: int
    disturbed: bool
    place: dict[str, Any] | None
    hogs: tuple[int, ...] = ()


class Seen:
    """A switch that remembers whether it is on, for the oracle."""

    def __init__(self, switch: Any) -> None:
        self.switch, self.on = switch, False

    def turn(self, on: bool) -> None:
        """Turn the disturbance on or off."""
        self.on = on
        self.switch.turn(on)


def texts(words: int = WORDS, longest: int = LONGEST + 1, shortest: int = 2) -> list[Any]:
    """Return functions of Python's own library, as numbers of words, cut to the longest."""
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
    numbers = [[zlib.crc32(word) % words for word in text[:longest]] for text in found]
    return [torch.tensor(text) for text in numbers if len(text) >= shortest]


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

    def __init__(
        self, scheme: str, told: Told, data: list[Any], profiled: np.ndarray, speed: Callable[[], float]
    ) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.scheme, self.told, self.data, self.speed = scheme, told, data, speed
        self.model = DistributedDataParallel(model())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses: list[int] = []  # tokens of each step, under the name by which turns are counted
        self.lengths = np.array([len(text) - 1 for text in data], dtype=np.float64)
        self.loader, self.balance = self._loader(scheme, profiled)
        self._steps = self._train()

    def _loader(self, scheme: str, profiled: np.ndarray) -> tuple[Any, Any]:
        from paceline.predictors import Auto
        from paceline.torch import BalancedLoader, Costs, attach

        if scheme == "batch_rebalance":
            from torch.utils.data import DataLoader
            from transformers.trainer_pt_utils import BatchRebalanceSampler

            lengths = self.lengths.astype(int).tolist()
            sampler = BatchRebalanceSampler(lengths, GLOBAL_BATCH, 2, 1, rank=self.told.rank)
            return DataLoader(self.data, batch_sampler=sampler, collate_fn=collate), None
        costs: Costs | None = None
        if scheme in ("cost", "both"):
            costs = Costs(lengths=self.lengths, padded=True)
        if scheme == "oracle":
            costs = Costs(cost=profiled, padded=True)
        loader = BalancedLoader(self.data, GLOBAL_BATCH, collate_fn=collate, costs=costs)
        balance = None
        if scheme in ("speed", "both", "cost"):
            from paceline.coordinator.policy import Policy

            policy = Policy(warmup=2**40) if scheme == "cost" else None
            balance = attach(self.model, loader, predictor=Auto(), policy=policy)
        return loader, balance

    def step(self) -> None:
        """Train for one step; the oracle is told how fast the second rank is."""
        if self.scheme == "oracle":
            slow = self.speed()
            share = round(GLOBAL_BATCH * slow / (1 + slow))
            self.loader.shares = np.array([GLOBAL_BATCH - share, share])
        next(self._steps)

    def _train(self) -> Iterator[None]:
        import torch
        from torch.nn.functional import cross_entropy

        while True:
            for inputs, labels in self.loader:
                self.optimizer.zero_grad()
                loss = cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())
                if self.balance is not None:
                    loss = self.balance.scale(loss, (labels != -100).sum())
                loss.backward()
                self.optimizer.step()
                self.losses.append(int(torch.count_nonzero(labels != -100)))
                yield

    def cost_error(self, profiled: np.ndarray) -> float | None:
        """Return how far learned costs are from the profiled ones, in the mean, weighted by cost."""
        if self.scheme != "both":
            return None
        from paceline.coordinator.work import sum_of_products

        columns = np.stack([self.lengths, self.lengths**2, np.ones_like(self.lengths)], axis=1)
        cost = sum_of_products(columns / columns.mean(axis=0), self.balance.work.coefficients)
        true = profiled / profiled.mean()
        return float(np.abs(cost / cost.mean() - true).sum() / true.sum())


def profile(data: list[Any]) -> np.ndarray:
    """Return what each sample costs alone on this core, in seconds, by its length.

    Costs are differences between many rows and few: what a batch costs besides its samples is no sample's.
    """
    import torch
    from torch.nn.functional import cross_entropy

    net, lengths, rows = model(), (4, 16, 48, 96, 192, 288, 384), (8, 32)
    taken: dict[tuple[int, int], list[float]] = {}
    for _ in range(8):  # in turns: a busy moment then meets all lengths
        for length in lengths:
            for count in rows:
                inputs = torch.zeros(count, length, dtype=torch.int64)
                began = time.thread_time()
                cross_entropy(net(inputs).flatten(0, 1), inputs.flatten()).backward()
                taken.setdefault((length, count), []).append(time.thread_time() - began)
    few, many = (np.array([min(taken[length, count]) for length in lengths]) for count in rows)
    seconds = np.maximum(many - few, 1e-6) / (rows[1] - rows[0])
    wide = np.array([len(text) - 1 for text in data], dtype=np.float64)
    fit = np.polyfit(lengths, seconds, 2, w=1 / seconds)
    return np.maximum(np.polyval(fit, wide), seconds.min() / 4)


def told_of(told: Told) -> tuple[Any, Callable[[], float]]:
    """Begin this rank's disturbance; return what turns it on and off, and what its speed is at the moment."""
    from paceline.lab.disturbance import DISTURBANCES
    from paceline.lab.experiment_worker import start_disturbance

    bursts = start_disturbance(asdict(told), SimpleNamespace(contention=told.contention))
    quota = DISTURBANCES[told.contention].quota or 1.0
    if bursts is None:
        return None, lambda: quota
    bursts.switch = seen = Seen(bursts.switch)
    return bursts, lambda: quota if seen.on else 1.0


def work() -> None:
    """Run one rank: the first line of the standard input tells what to do."""
    told = Told(**json.loads(sys.stdin.readline()))
    import torch
    from torch import distributed

    from paceline.lab.experiment_worker import last_iteration, train_turn
    from paceline.lab.processes import Place, die_with_parent

    die_with_parent()
    os.sched_setaffinity(0, [told.core])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{told.folder}/rendezvous", rank=told.rank, world_size=2)
    data = texts()
    costs = torch.tensor(profile(data))
    distributed.broadcast(costs, src=0)  # every rank must divide by the same
    if told.place:
        Place(**told.place).enter()  # only now, because libraries load slowly under a quota
    bursts, second = told_of(told)

    def speed() -> float:
        now = torch.tensor([second()])
        distributed.broadcast(now, src=1)
        return float(now)

    contestants = {scheme: Contestant(scheme, told, data, costs.numpy(), speed) for scheme in SCHEMES}
    for contestant in contestants.values():
        for _ in range(told.warm_up):
            contestant.step()
    turns, finish = [], last_iteration(Path(told.folder))
    for scheme, seed in told.turns:
        one = contestants[scheme]
        seen = train_turn(one, scheme, seed, told.seconds, told.rank, finish, bursts)
        error, count = one.cost_error(costs.numpy()), len(seen.seconds)
        tokens = sum(one.losses[seen.first : seen.first + count])
        turns.append({"scheme": scheme, "seconds": sum(seen.seconds), "tokens": tokens, "cost_error": error})
    (Path(told.folder) / f"result{told.rank}.json").write_text(json.dumps(turns))
    distributed.destroy_process_group()


if __name__ == "__main__":
    work()
    os._exit(0)  # threads of torch may outlive the interpreter and abort a process whose work is done
