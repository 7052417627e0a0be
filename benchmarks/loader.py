"""Is the balanced loader slower than torch's own? Both load the same made images, in turns, in one run.

python benchmarks/loader.py            # about two minutes; writes benchmarks/loader.md
python benchmarks/loader.py --quick
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from paceline.torch.loader import BalancedLoader

BATCH = 128
RANKS = 2


class Images(Dataset[Any]):
    """Synthetic images, each decoded with a little arithmetic."""

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = torch.full((3, self.side, self.side), float(index % 255))
        return pixels.mul_(1 / 255).sub_(0.5), index % 10


def theirs(data: Dataset[Any], workers: int) -> Iterable[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=RANKS, rank=0)
    return DataLoader(data, BATCH, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)


def ours(data: Dataset[Any], workers: int) -> BalancedLoader:
    return BalancedLoader(data, BATCH * RANKS, rank=0, world_size=RANKS, num_workers=workers)


def changing(data: Dataset[Any], workers: int) -> BalancedLoader:
    """A loader whose sizes change before every batch, by up to a fifth, the same number of samples in the mean."""
    loader = ours(data, workers)
    rng = np.random.default_rng(0)

    def change() -> None:
        more = int(rng.integers(-BATCH // 5, BATCH // 5 + 1))
        loader.sizes = np.array([BATCH + more, BATCH - more])

    loader.before_batch = change
    return loader


def seconds_of_an_epoch(loader: Iterable[Any]) -> float:
    start = time.perf_counter()
    samples = sum(len(images) for images, _ in loader)
    return (time.perf_counter() - start) / samples


def compare(side: int, workers: int, batches: int, rounds: int) -> str:
    data = Images(BATCH * RANKS * batches, side)
    makers: list[Callable[[Dataset[Any], int], Iterable[Any]]] = [theirs, ours, changing]
    loaders = [make(data, workers) for make in makers]
    for loader in loaders:
        seconds_of_an_epoch(loader)  # starts the loading processes
    times = np.array([[seconds_of_an_epoch(loader) for loader in loaders] for _ in range(rounds)])
    ratio = np.median(times / times[:, :1], axis=0)
    torch_us = np.median(times[:, 0]) * 1e6
    return f"| 3 x {side} x {side} | {workers} | {torch_us:.0f} us | {ratio[1]:.2f} | {ratio[2]:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few batches; print only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    batches, rounds = (6, 3) if quick else (24, 9)
    rows = [compare(side, workers, batches, rounds) for side in (32, 128) for workers in (0, 1, 2)]
    page = PAGE.format(machine=machine("torch"), batch=BATCH, rows="\n".join(rows))
    print(page)
    if not quick:
        Path(__file__).with_suffix(".md").write_text(page)


PAGE = """# How fast the balanced loader is

Command: `python benchmarks/loader.py`

Machine: {machine}

Time of an epoch over that of torch's `DataLoader` with a `DistributedSampler`, median of rounds in which all three took
turns; batches of {batch} samples on one of two ranks, decoded with a little arithmetic. *Changing* is a batch size that
moves by up to a fifth before every batch: batches are then cut from what was loaded ahead, and copied once more.

| sample | loading processes | torch, a sample | balanced, sizes constant | balanced, sizes changing |
| --- | --- | --- | --- | --- |
{rows}
"""

if __name__ == "__main__":
    main()
