"""Local SGD with steps by speed, equal steps, and batches balanced at every step: loss at equal samples, and time.

python benchmarks/local_sgd.py    # two minutes; writes local_sgd.md

Two ranks train a small network on scikit-learn's digits. The second rank is slower by a factor: it sleeps and computes
longer for every sample, and both have a fixed part in every step. Ways take turns, seed by seed.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from machine import machine
from ranks import run_ranks

WAYS = ("equal steps", "steps by speed", "DiLoCo, equal steps", "DiLoCo, steps by speed", "balanced at every step")
SEEDS, EPOCHS = 4, 6
STEP, STEPS = 8, 16
"""Samples of a step, and steps of a rank in a round of equal ones."""

SLOWER, SAMPLE_MS, FIXED_MS = 2.5, 0.15, 0.3


def train(rank: int, way: str, seed: int) -> tuple[float, float, list[int]]:
    """Train one job; return the loss over all samples at the end, the seconds, and the last sizes."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel

    from paceline.coordinator import Policy
    from paceline.torch import BalancedLoader, LocalSGD, attach

    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    data = torch.utils.data.TensorDataset(inputs, targets)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    local, rate = "every step" not in way, 0.2
    if local:
        loader = BalancedLoader(data, 2 * STEP * STEPS, micro_batch=STEP, seed=seed)
        policy = Policy(warmup=2**40, batch_multiple=STEP) if "equal" in way else None
        outer = (
            (lambda anchors: torch.optim.SGD(anchors, lr=0.7, momentum=0.9, nesterov=True)) if "DiLoCo" in way else None
        )
        keeper = LocalSGD(model, loader, policy=policy, outer=outer)
        trained = model
    else:
        loader = BalancedLoader(data, 2 * STEP, seed=seed)
        trained = DistributedDataParallel(model)
        keeper = attach(trained, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    matrix = np.random.default_rng(0).random((96, 96))

    def spend(samples: int) -> None:
        seconds = FIXED_MS / 1e3 + samples * SAMPLE_MS / 1e3 * (SLOWER if rank else 1)
        until = time.perf_counter() + seconds / 2
        while time.perf_counter() < until:
            matrix @ matrix
        time.sleep(seconds / 2)

    dist.barrier()
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for x, y in loader:
            spend(len(x))
            torch.nn.functional.cross_entropy(trained(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if local and loader.step_ends:
                keeper.merge()
    dist.barrier()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(inputs), targets))
    sizes = loader.shares.tolist()
    if not local:
        keeper.close()
    return loss, seconds, sizes


def compete(rank: int, put) -> None:
    """Train every way with every seed; the first rank reports."""
    for seed in range(SEEDS):
        for place in range(len(WAYS)):
            way = WAYS[(place + seed) % len(WAYS)]
            result = train(rank, way, seed)
            if rank == 0:
                put((way, *result))


def main() -> None:
    """Run all, and write the page."""
    rows = list(run_ranks(2, compete, answers=SEEDS * len(WAYS)))
    base = np.mean([seconds for way, _, seconds, _ in rows if way == WAYS[0]])
    table = []
    for way in WAYS:
        losses = np.array([loss for name, loss, _, _ in rows if name == way])
        times = np.array([seconds for name, _, seconds, _ in rows if name == way])
        sizes = [sizes for name, _, _, sizes in rows if name == way][-1]
        table.append(
            f"| {way} | {losses.mean():.3f} ± {losses.std(ddof=1):.3f} | {times.mean():.2f} | "
            f"{times.mean() / base:.2f} | {sizes} |"
        )
    text = f"""# Local SGD with steps by speed

Command: `python benchmarks/local_sgd.py`

Machine: {machine()}

Two ranks on scikit-learn's digits, {EPOCHS} epochs, {SEEDS} seeds in turns.
A sample costs the first rank {SAMPLE_MS} ms and the second {SLOWER} times that, half of it asleep and half in products
of matrices; a step costs both {FIXED_MS} ms more. A step has {STEP} samples, a round {2 * STEP * STEPS}.
*Balanced at every step* is `attach` on DistributedDataParallel with {2 * STEP} samples a step.
The loss is that over all samples after the last epoch: every way has seen every sample {EPOCHS} times.
Sizes are the last round's (or step's) samples of each rank.

| way | loss | seconds | of equal steps | last sizes |
| --- | --- | --- | --- | --- |
{chr(10).join(table)}
"""
    Path(__file__).with_name("local_sgd.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
