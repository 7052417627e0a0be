"""What dividing by cost and speed gains in a real training: a small language model, two ranks, turns of one run.

python benchmarks/work_live.py                # about seven minutes on an idle machine; writes work_live.md
python benchmarks/work_live.py --quick        # a minute; prints only
python benchmarks/work_live.py --quick quota  # this disturbance only
"""

from __future__ import annotations

import ast
import os
import random
import re
import struct
import sys
import sysconfig
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from ranks import run_ranks
from scipy.stats import t as student

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.processes import join_control_group, quota_placement

QUICK = "--quick" in sys.argv
GLOBAL_BATCH, LONGEST, WORDS = 64, 384, 512
SCHEMES = ("random", "batch_rebalance", "speed", "cost", "both")
CONTENTIONS = ("none", "quota", "bursty")
"""Disturbances of ``paceline.lab``, which benchmarks/live.py has too."""

TARGETS = {
    ("quota", "batch_rebalance"): 1.3,
    ("quota", "speed"): 1.3,
    ("none", "batch_rebalance"): 1.0,
}
"""By how much *both* is wanted to be faster than another scheme under one disturbance."""

ROUNDS, SECONDS, WARM_UP = (1, 0.5, 4) if QUICK else (6, 3.0, 30)
"""Rounds, in each of which every scheme has a turn of so many seconds; and steps of each scheme before them."""


def texts(words: int, longest: int, shortest: int) -> list[Any]:
    """Return functions of Python's own library, as numbers of words, cut to the longest."""
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

    def __init__(self, scheme: str, rank: int, data: list[Any]) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.model = DistributedDataParallel(model())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses: list[int] = []  # tokens of each step, under the name by which turns are counted
        self.loader, self.balance = self._loader(scheme, rank, data)
        self._steps = self._train()

    def _loader(self, scheme: str, rank: int, data: list[Any]) -> tuple[Any, Any]:
        from torch.utils.data import DataLoader

        from paceline.coordinator.policy import Policy
        from paceline.torch import BalancedLoader, Costs, attach

        lengths = [len(text) - 1 for text in data]
        if scheme == "batch_rebalance":
            from transformers.trainer_pt_utils import BatchRebalanceSampler

            sampler = BatchRebalanceSampler(lengths, GLOBAL_BATCH, 2, 1, rank=rank)
            return DataLoader(data, batch_sampler=sampler, collate_fn=collate), None
        costs = Costs(lengths=lengths, padded=True) if scheme in ("cost", "both") else None
        loader = BalancedLoader(data, GLOBAL_BATCH, collate_fn=collate, costs=costs)
        policy = Policy(warmup=2**40) if scheme == "cost" else None
        return loader, None if scheme == "random" else attach(self.model, loader, policy=policy)

    def step(self) -> None:
        """Train for one step."""
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


def compete(
    rank: int, put: Any, name: str, order: list[tuple[str, int]], folder: str, place: Sequence[str] | None
) -> None:
    """Train every scheme in its turns; put the scheme, the tokens and the seconds of each."""
    from paceline.lab.experiment_worker import shared_end_iteration, start_disturbance, train_turn

    warnings.filterwarnings("ignore", message="A further model")  # each scheme has one
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    data, disturbed = texts(WORDS, LONGEST + 1, 2), rank == 1
    if place is not None and disturbed:
        join_control_group(place)  # only now, because libraries load slowly under a quota
    bursts = start_disturbance(DISTURBANCES[name], place, ()) if disturbed else None
    contestants = {scheme: Contestant(scheme, rank, data) for scheme in SCHEMES}
    for contestant in contestants.values():
        for _ in range(WARM_UP):
            contestant.step()
    turns, finish = [], shared_end_iteration(Path(folder))
    for scheme, seed in order:
        one = contestants[scheme]
        seen = train_turn(one, scheme, seed, SECONDS, rank, finish, bursts)  # type: ignore[arg-type]
        tokens = sum(one.losses[seen.first_iteration : seen.first_iteration + len(seen.seconds)])
        turns.append((scheme, tokens, sum(seen.seconds)))
    put(turns)


def tokens_per_second(name: str) -> dict[str, np.ndarray]:
    """Let two ranks train under one disturbance; return what both together did in each turn of each scheme."""
    order = [(scheme, seed) for seed in range(ROUNDS) for scheme in random.Random(seed).sample(SCHEMES, len(SCHEMES))]
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder, quota_placement(1.0) as place:
        if place is None and DISTURBANCES[name].quota is not None:
            raise RuntimeError(f"{name} needs control groups that can be written, which this machine does not let us")
        (Path(folder) / "finish").write_bytes(struct.pack("q", 0))
        results = list(run_ranks(2, compete, name, order, folder, place, answers=2))
    rates: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for (scheme, tokens, seconds), (_, more, others) in zip(*results, strict=True):
        rates[scheme].append((tokens + more) / max(seconds, others))
    return {scheme: np.array(values) for scheme, values in rates.items()}


def spread(logs: np.ndarray) -> tuple[float, float]:
    """Return the mean and the half-width of its 95% confidence interval."""
    half = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
    return float(logs.mean()), float(half)


def section(name: str) -> Iterator[str]:
    """Run one disturbance and yield its table."""
    rates = tokens_per_second(name)
    yield f"## `{name}`: {DISTURBANCES[name]}\n"
    yield "| scheme | over random |\n| --- | --- |"
    for scheme in SCHEMES:
        mean_log, half = spread(np.log(rates[scheme] / rates["random"]))
        yield f"| {scheme} | {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f} |"
    for other in ("batch_rebalance", "speed"):
        mean_log, half = spread(np.log(rates["both"] / rates[other]))
        wanted = TARGETS.get((name, other), 0.0)
        missed = f" **Missed**: the target is {wanted:g}." if np.exp(mean_log) < wanted else ""
        yield f"\n*both* over *{other}*: {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f}.{missed}"


ABOUT = f"""A causal transformer of words on functions of Python's library, cut at {LONGEST} words, padded in batches;
{GLOBAL_BATCH} samples of two ranks in a step, each rank on a core of its own. {ROUNDS} rounds, in each of which every
scheme has a turn of {SECONDS:g} s in an order drawn at random; quotas and bursts are those of `benchmarks/live.py`, and
bursts come at the same times for all schemes of a round. Figures are tokens per second of wall time over those of
*random* in the same round: geometric means with the half-width of their 95% confidence interval.

- *random*: equal counts of a random batch, plain `DistributedDataParallel`.
- *batch_rebalance*: transformers' own sampler. It knows costs, but no speeds.
- *speed*: this library without costs. *cost*: with learned costs, but equal shares.
- *both*: this library with learned costs and forecast speeds."""


def main() -> None:
    names = [name for name in CONTENTIONS if name in sys.argv] or list(CONTENTIONS)
    text = ["# Cost and speed, live", "", "Command: `python benchmarks/work_live.py`", ""]
    text += [f"Machine: {machine('torch', 'transformers')}; load average {os.getloadavg()[0]:.1f} at the start.", ""]
    text += [ABOUT, ""]
    for name in names:
        text += [*section(name), ""]
        print("\n".join(text[-len(SCHEMES) - 6 :]), flush=True)
    if not QUICK and names == list(CONTENTIONS):
        Path(__file__).with_suffix(".md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
