"""One rank of benchmarks/work_live.py: trains a small language model for every scheme in turn. Axis: W ranks."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

GLOBAL_BATCH = 64
LONGEST = 256
SCHEMES = ("random", "batch_rebalance", "speed", "cost", "both", "clairvoyant")
QUOTAS = {"none": (None, None), "quota": (0.5, None), "bursty": (0.25, 2.0)}
"""For each disturbance of the second rank its quota in cores, and the mean seconds of a burst."""

TURN_SETTLES = 3
"""Iterations at the start of a turn that are not counted."""


@dataclass(frozen=True)
class Told:
    """What a rank is told: who it is, how it is disturbed, and whose turn comes when, for so many seconds."""

    rank: int
    core: int
    folder: str
    contention: str
    seconds: float
    place: dict[str, Any] | None
    turns: list[tuple[str, int]]


def texts() -> list[Any]:
    """Return functions of Python's own library, as bytes."""
    import ast
    import sysconfig

    import torch

    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        found += [b"".join(lines[node.lineno - 1 : node.end_lineno])[: LONGEST + 1] for node in nodes]
    return [torch.tensor(list(text)) for text in found if len(text) > 1]


def model() -> Any:
    import torch
    from torch import nn

    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, 64), nn.Embedding(LONGEST, 64)
            self.layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0, batch_first=True)
            self.next = nn.Linear(64, 256)

        def forward(self, inputs: Any) -> Any:
            length = inputs.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            hidden = self.tokens(inputs) + self.places(torch.arange(length))
            return self.next(self.layer(hidden, mask, is_causal=True))

    torch.manual_seed(0)
    return Bytes()


def collate(samples: list[Any]) -> tuple[Any, Any]:
    from torch.nn.utils.rnn import pad_sequence

    inputs = pad_sequence([sample[:-1] for sample in samples], batch_first=True)
    return inputs, pad_sequence([sample[1:] for sample in samples], batch_first=True, padding_value=-100)


class Contestant:
    """One scheme's training, which can be stopped and resumed between any two steps."""

    def __init__(self, scheme: str, told: Told, data: list[Any], profiled: np.ndarray) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.scheme, self.told, self.data = scheme, told, data
        self.model = DistributedDataParallel(model())
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []
        self.tokens: list[int] = []
        self.waits: list[float] = []
        self.shares: np.ndarray | None = None
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
        return loader, balance

    def step(self) -> None:
        """Train for one iteration."""
        next(self._steps)

    def _train(self) -> Iterator[None]:
        import torch
        from torch.nn.functional import cross_entropy

        while True:
            for inputs, labels in self._batches():
                self.optimiser.zero_grad()
                loss = cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())
                loss.backward()
                self.optimiser.step()
                self.losses.append(float(loss.detach()))
                self.tokens.append(int(torch.count_nonzero(labels != -100)))
                yield

    def _batches(self) -> Iterator[Any]:
        if self.scheme != "clairvoyant":
            yield from self.loader
            return
        self.loader.before_batch = self._know
        yield from self.loader

    def _know(self) -> None:
        """Set the shares that the second rank's quota, as it is now, deserves: both ranks by its word."""
        import torch
        from torch import distributed

        quota = torch.ones(1)
        if self.told.place is not None:
            quota[0] = quota_of(self.told.place["folders"][0])
        distributed.broadcast(quota, src=1)
        slow = round(GLOBAL_BATCH * float(quota) / (1 + float(quota)))
        self.loader.sizes = np.array([GLOBAL_BATCH - slow, slow])

    def cost_error(self, profiled: np.ndarray) -> float | None:
        """Return how far learned costs are from the profiled ones, in the mean, weighed by cost."""
        if self.scheme != "both":
            return None
        from paceline.coordinator.work import sum_of_products

        columns = np.stack([self.lengths, self.lengths**2, np.ones_like(self.lengths)], axis=1)
        cost = sum_of_products(columns / columns.mean(axis=0), self.balance.work.coefficients)
        true = profiled / profiled.mean()
        return float(np.abs(cost / cost.mean() - true).sum() / true.sum())


def quota_of(folder: str) -> float:
    """Return the cores that a control group may use, at most 1."""
    if (Path(folder) / "cpu.cfs_quota_us").exists():
        quota = int((Path(folder) / "cpu.cfs_quota_us").read_text())
        period = int((Path(folder) / "cpu.cfs_period_us").read_text())
        return 1.0 if quota < 0 else min(quota / period, 1.0)
    quota, period = (Path(folder) / "cpu.max").read_text().split()
    return 1.0 if quota == "max" else min(int(quota) / int(period), 1.0)


def profile(data: list[Any]) -> np.ndarray:
    """Return what each sample costs alone on this core: seconds of a padded batch, per sample, by its length."""
    import torch
    from torch.nn.functional import cross_entropy

    net, lengths, seconds = model(), (8, 32, 64, 128, 192, 256), []
    for length in lengths:
        inputs = torch.zeros(16, length, dtype=torch.int64)
        taken = []
        for _ in range(6):
            began = time.process_time()
            cross_entropy(net(inputs).flatten(0, 1), inputs.flatten()).backward()
            taken.append(time.process_time() - began)
        seconds.append(min(taken) / 16)
    wide = np.array([len(text) - 1 for text in data], dtype=np.float64)
    fit = np.polyfit(lengths, seconds, 2, w=1 / np.array(seconds))
    return np.maximum(np.polyval(fit, wide), min(seconds) / 4)


def work() -> None:
    """Run one rank: the first line of the standard input tells what to do."""
    told = Told(**json.loads(sys.stdin.readline()))
    import torch
    from torch import distributed

    from paceline.lab.contention.disturbance import Bursts, Quota
    from paceline.lab.experiment.worker import Finish, take_turn
    from paceline.lab.processes.orphan import die_with_parent
    from paceline.recording.place import Place

    die_with_parent()
    os.sched_setaffinity(0, {told.core})
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{told.folder}/rendezvous", rank=told.rank, world_size=2)
    data = texts()
    costs = torch.tensor(profile(data))
    distributed.broadcast(costs, src=0)  # every rank must divide by the same
    bursts = None
    if told.place is not None:
        Place(**told.place).enter()
        quota, mean = QUOTAS[told.contention]
        switch = Quota(told.place["folders"][0], quota or 1.0)
        bursts = Bursts(switch, mean) if mean else None
        switch.turn(mean is None)
    contestants = {scheme: Contestant(scheme, told, data, costs.numpy()) for scheme in SCHEMES}
    for contestant in contestants.values():
        for _ in range(8):
            contestant.step()
    finish, turns = Finish(Path(told.folder) / "finish"), []
    for scheme, seed in told.turns:
        one = contestants[scheme]
        turn = take_turn(one, scheme, seed, told.seconds, told.rank, finish, bursts)  # type: ignore[arg-type]
        turns.append(
            {
                "scheme": scheme,
                "seconds": sum(turn.seconds[TURN_SETTLES:]),
                "tokens": sum(one.tokens[turn.first + TURN_SETTLES :]),
                "cost_error": one.cost_error(costs.numpy()),
            }
        )
    (Path(told.folder) / f"result{told.rank}.json").write_text(json.dumps(turns))
    distributed.destroy_process_group()


if __name__ == "__main__":
    work()
    os._exit(0)  # threads of torch may outlive the interpreter and abort a process whose work is done
