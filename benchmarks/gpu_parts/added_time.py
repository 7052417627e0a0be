"""Added time beside steps of 5 and 20 ms: what balancing adds to a step, in turns with plain training."""

from __future__ import annotations

import time

import numpy as np
import torch
from place import Found, Place, join, ours, run
from torch.nn.parallel import DistributedDataParallel

from paceline.predictors import Auto
from paceline.torch import BalancedLoader, attach

STEPS = (0.005, 0.02)
"""Seconds for which a step keeps the device busy."""

MOST_WALL, MOST_LAUNCH = 5e-4, 5e-3
"""Seconds that balancing may add to a step, and to the CPU's time to launch it: three times what an H200 showed."""


class Training:
    """A training loop of one rank, plain or balanced, that keeps the device busy for so long in every step."""

    def __init__(self, place: Place, busy: float, balanced: bool) -> None:
        self.place, self.busy = place, busy
        layers = [torch.nn.Linear(256, 256) for _ in range(8)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers).to(place.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = BalancedLoader(torch.randn(64 * 64, 256), 64)
        self.balance = attach(self.model, self.loader, predictor=Auto()) if balanced else None
        self._steps = self._train()

    def _train(self):
        while True:
            for inputs in self.loader:
                self.optimizer.zero_grad()
                outputs = self.model(inputs.to(self.place.device, non_blocking=True))
                self.place.busy(self.busy)
                outputs.square().mean().backward()
                self.optimizer.step()
                yield

    def block(self, steps: int) -> float:
        """Return the wall seconds of a step, of so many that are launched one after the other."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            next(self._steps)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    def launched(self, steps: int) -> float:
        """Return the seconds that a step takes the CPU, of so few that no queue of kernels is full."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            next(self._steps)
        return (time.perf_counter() - began) / steps


def compared(place: Place, found: Found, busy: float) -> list[str]:
    """Return a row: plain and balanced training in turns."""
    kinds = {balanced: Training(place, busy, balanced) for balanced in (False, True)}
    turns, steps = (8, max(int(0.3 / busy), 6)) if place.real else (2, 4)
    walls: dict[bool, list[float]] = {False: [], True: []}
    launches: dict[bool, list[float]] = {False: [], True: []}
    for kind in kinds.values():
        kind.block(40 if place.real else 8)  # until it is known how long planning takes
    with place.waits() as waits:
        for turn in range(turns):
            for balanced in (False, True) if turn % 2 else (True, False):
                walls[balanced].append(kinds[balanced].block(steps))
                launches[balanced].append(kinds[balanced].launched(8 if place.real else 3))
    found.require(not ours(waits), f"the library waits for the device: {sorted(set(ours(waits)))}")
    kinds[True].balance.close()
    more = np.subtract(walls[True], walls[False])
    launch = np.subtract(launches[True], launches[False])
    if place.real:
        found.require(np.median(more) < MOST_WALL, f"balancing adds {np.median(more)} s to a step of {busy} s")
        found.require(np.mean(launch) < MOST_LAUNCH, f"balancing adds {np.mean(launch)} s to a launch")
    added = (np.median(more), np.std(more) / np.sqrt(len(more)), np.mean(launch))
    return [f"{1e3 * busy:g}", f"{1e3 * np.median(walls[False]):.3f}", *(f"{1e6 * one:.0f}" for one in added)]


def part(place: Place, found: Found) -> None:
    """Compare beside steps of each length."""
    join(place)
    heading = ["busy, ms", "plain step, ms", "balancing adds, us", "+-, us", "of the CPU's time to launch it, us"]
    found.tables.append([heading, *(compared(place, found, busy) for busy in STEPS)])
    if not place.real:
        found.left_out.append("What balancing costs beside a device's steps.")


if __name__ == "__main__":
    run(part)
