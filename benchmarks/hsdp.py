"""Counts of micro-batches by the speed of a replica, under HSDP: time by the clock, beside that of fixed counts.

python benchmarks/hsdp.py    # two minutes; writes hsdp.md

Four ranks are two replicas of two shards. One rank is half as fast, and with it its replica. Three jobs take turns.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from machine import machine
from ranks import run_ranks

from paceline.coordinator import Policy
from paceline.predictors import Auto, Forecast

WAYS = {"equal counts": (8, 8), "fixed counts": (10, 6), "other fixed counts": (11, 5), "balanced": None}
"""Micro-batches of both replicas in a step."""

COUNTS = 16

MICRO, SAMPLE_MS, FIXED_MS, SLOWER = 4, 4.0, 10.0, 2.0
BLOCK, TURNS, SKIPPED = 10, 9, 3
"""Steps of a turn, turns, and those that are left out: the balanced job warms up."""


class Fixed(Auto):
    """Forecasts the speeds for which these counts are best."""

    reads_sizes = True  # no fixed part of the time is learned in front of it

    def __init__(self, counts: tuple[int, int]) -> None:
        super().__init__()
        self.counts = counts

    def predict(self, *, covariates=None, horizon=1):
        """Return them."""
        return Forecast(np.array(self.counts, dtype=float), np.full(2, 1e-6))


class Job:
    """One way of training, a turn at a time."""

    def __init__(self, counts: tuple[int, int] | None, rank: int, mesh) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        from paceline.torch import BalancedLoader, attach

        self.rank, self.seconds, self.counts = rank, [], []
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        fully_shard(model[0], mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        samples = COUNTS * MICRO * 2  # each rank of a replica takes as many
        data = torch.randn(samples * BLOCK * TURNS, 16, generator=torch.Generator().manual_seed(0))
        self.loader = BalancedLoader(data, samples, micro_batch=MICRO, drop_last=True)
        policy = Policy(warmup=0, risk=0, change_cost=0, batch_multiple=MICRO) if counts else None
        predictor = Fixed(counts) if counts else None
        self.balance = attach(self.model, self.loader, predictor=predictor, policy=policy)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batches = iter(self.loader)

    def turn(self) -> None:
        """Train for a turn."""
        began, steps = time.perf_counter(), 0
        while steps < BLOCK:
            inputs = next(self.batches)
            with self.balance.accumulating():
                time.sleep(len(inputs) * SAMPLE_MS / 1e3 * (SLOWER if self.rank == 3 else 1))
                self.model(inputs).square().mean().backward()
            if self.loader.step_ends:
                time.sleep(FIXED_MS / 1e3)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.counts.append((self.loader.batch_sizes[::2] // MICRO).tolist())
                steps += 1
        self.seconds.append((time.perf_counter() - began) / BLOCK)


def compete(rank: int, put) -> None:
    """Train every way in turns; the first rank reports."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    jobs = [Job(counts, rank, mesh) for counts in WAYS.values()]
    for turn in range(TURNS):
        for job in jobs if turn % 2 else jobs[::-1]:
            job.turn()
    if rank == 0:
        put([(job.seconds, job.counts) for job in jobs])


def main() -> None:
    """Run all, and write the page."""
    (found,) = run_ranks(4, compete, answers=1)
    seconds = np.array([seconds[SKIPPED:] for seconds, _ in found])
    equal, *fixed, balanced = seconds.mean(axis=1)
    best = min(fixed)
    rows = [
        f"| {way} | {1e3 * each.mean():.1f} ± {1e3 * each.std(ddof=1):.1f} | {each.mean() / equal:.2f} | {counts[-1]} |"
        for way, each, (_, counts) in zip(WAYS, seconds, found, strict=True)
    ]
    text = f"""# HSDP: micro-batches by the speed of a replica

Command: `python benchmarks/hsdp.py`

Machine: {machine("torch")}

Four ranks are two replicas of two shards each (`fully_shard` on a mesh of 2 x 2). A step has {COUNTS} micro-batches of
{MICRO} samples for the two replicas. A sample takes {SAMPLE_MS:g} ms asleep, on one rank of the second replica
{SLOWER:g} times as long; a step takes {FIXED_MS:g} ms more. Jobs take turns of {BLOCK} steps, by the clock, with
everything that training and balancing cost; the first {SKIPPED} of {TURNS} turns are left out.

| way | ms a step | of equal counts | last counts |
| --- | --- | --- | --- |
{chr(10).join(rows)}

Balanced counts reach {(equal - balanced) / (equal - best):.2f} of what the better fixed counts gain.
"""
    Path(__file__).with_name("hsdp.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
