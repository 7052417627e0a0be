"""Added time beside steps of 5 and 20 ms: what balancing adds to a step, in turns with plain training."""

from __future__ import annotations

import time

import numpy as np
import torch
from place import BusyLoop, Found, Place, join, ours, run

from paceline.predictors import Auto

STEPS = (0.005, 0.02)
"""Seconds for which a step keeps the device busy."""

MOST_WALL, MOST_LAUNCH = 5e-4, 5e-3
"""Seconds that balancing may add to a step, and to the CPU's time to launch it: three times what an H200 showed."""


class Training(BusyLoop):
    """A training loop, plain or balanced, whose steps keep the device busy for so long."""

    def __init__(self, place: Place, busy: float, balanced: bool) -> None:
        layers = [torch.nn.Linear(256, 256) for _ in range(8)]
        attached = {"predictor": Auto()} if balanced else {}
        super().__init__(place, torch.nn.Sequential(*layers), torch.randn(64 * 64, 256), **attached)
        self.busy = busy

    def launched(self, steps: int, *, done: bool = False) -> float:
        """Return the seconds of the CPU to launch a step, or of the clock until the device has done it.

        So few steps should be launched that no queue of kernels is full.
        """
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.step(self.busy)
        if done:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps


def compared(place: Place, found: Found, busy: float) -> list[str]:
    """Return a row: plain and balanced training in turns."""
    kinds = {balanced: Training(place, busy, balanced) for balanced in (False, True)}
    turns, steps = (8, max(int(0.3 / busy), 6)) if place.real else (2, 4)
    walls: dict[bool, list[float]] = {False: [], True: []}
    launches: dict[bool, list[float]] = {False: [], True: []}
    for kind in kinds.values():
        kind.launched(40 if place.real else 8, done=True)  # until it is known how long planning takes
    with place.waits() as waits:
        for turn in range(turns):
            for balanced in (False, True) if turn % 2 else (True, False):
                walls[balanced].append(kinds[balanced].launched(steps, done=True))
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
