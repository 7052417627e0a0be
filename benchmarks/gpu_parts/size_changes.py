"""The price of a new batch size with the caching allocator, cuDNN's benchmarking and ``torch.compile``."""

from __future__ import annotations

import time

import numpy as np
import torch
from place import Found, Place, run
from torch import nn

MULTIPLES = (1, 32)


class Steps:
    """Training steps of a convolutional network, of any batch size.

    Parameters
    ----------
    compiled
        Whether ``torch.compile`` compiles it.
    """

    def __init__(self, place: Place, compiled: bool = False) -> None:
        self.place = place
        width, self.largest = (64, 512) if place.real else (4, 64)
        model = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.parameters = list(model.to(place.device).parameters())
        self.model = torch.compile(model) if compiled else model
        self.images = torch.randn(self.largest, 3, 32, 32).to(place.device)

    def step(self, size: int) -> float:
        """Return the wall seconds of a step of this size."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for parameter in self.parameters:
            parameter.grad = None
        self.model(self.images[:size]).square().mean().backward()
        torch.cuda.synchronize()
        return time.perf_counter() - began


def price(steps: Steps, multiple: int, changes: int) -> list[str]:
    """Return cells: the seconds of a size's first step beyond those of its later ones, and memory reserved."""
    chance = np.random.default_rng(multiple)
    torch.cuda.empty_cache()
    for _ in range(3):
        steps.step(steps.largest)
    known: dict[int, list[float]] = {}
    reserved = torch.cuda.memory_reserved()
    for _ in range(changes):
        size = multiple * int(chance.integers(steps.largest // (2 * multiple), steps.largest // multiple + 1))
        known.setdefault(size, []).extend(steps.step(size) for _ in range(3))
    first = np.array([taken[0] - np.median(taken[1:]) for taken in known.values()])
    grown = torch.cuda.memory_reserved() - reserved
    told = [f"{1e3 * np.median(first):.2f}", f"{1e3 * first.max():.1f}", f"{1e3 * first.sum():.0f}"]
    return [str(len(known)), *told, f"{grown / 2**20:.0f}"]


def part(place: Place, found: Found) -> None:
    """Change sizes with each of the three, by each multiple."""
    heading = ["with", "multiple", "different sizes", "first step of a size, more ms (median)", "the most", "all"]
    rows = [[*heading, "memory reserved, more MiB"]]
    changes = 40 if place.real else 4
    for multiple in MULTIPLES:
        rows.append(["the caching allocator", str(multiple), *price(Steps(place), multiple, changes)])
        torch.backends.cudnn.benchmark = True
        rows.append(["cuDNN's benchmarking", str(multiple), *price(Steps(place), multiple, changes)])
        torch.backends.cudnn.benchmark = False
    if place.real:
        for multiple in MULTIPLES:
            torch._dynamo.reset()
            cells = price(Steps(place, compiled=True), multiple, 12)
            rows.append(["torch.compile", str(multiple), *cells])
            found.tables = [rows]  # kept if the next does not end in time
    else:
        found.left_out.append("What a new size costs cuDNN, the caching allocator and torch.compile.")
    found.tables = [rows]


if __name__ == "__main__":
    run(part)
