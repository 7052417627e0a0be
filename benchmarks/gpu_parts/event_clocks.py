"""Event clocks: against a busy loop of known length and synchronized wall time; without waits; two iterations ahead."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch
from place import BusyLoop, Found, Place, join, ours, run

from paceline.coordinator import Policy
from paceline.predictors import EWMA, RLS, LastValue
from paceline.recording.torch.busy_time import BusyTimer, CUDAEvents

LENGTHS = (0.001, 0.005, 0.02, 0.05)
"""Seconds of a busy loop."""

STEPS, SETTLED = 24, 6
NEAR = 0.1
"""Relative error of the median that a clock may have, beside a tenth of a millisecond."""


def lengths(place: Place, found: Found) -> None:
    """Time busy loops by the clock, and by synchronized wall time."""
    rows = [["busy loop, ms", "by the clock, ms", "by synchronized wall time, ms"]]
    for seconds in LENGTHS:
        timer, told, walls = BusyTimer(CUDAEvents(torch.device(place.device))), [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            timer.forward_begins(samples=8)
            place.busy(seconds)
            waiting = timer.gradients_ready()
            timer.gradients_summed(waiting)
            told.append(timer.report().seconds)
            timer.wait_begins()  # else it would count as what a step does besides
            torch.cuda.synchronize()
            timer.wait_ends()
            walls.append(time.perf_counter() - began)
        own, wall = float(np.nanmedian(told)), float(np.median(walls))
        rows.append([f"{1e3 * one:.3f}" for one in (seconds, own, wall)])
        found.require(abs(own - seconds) < NEAR * seconds + 1e-4, f"{own} s were told of a loop of {seconds} s")
    found.tables.append(rows)


class Load:
    """A covariate that says by how much the device's work is longer now: the same for long, then another."""

    name, unit = "load", "share"

    def __init__(self) -> None:
        self.chance, self.now = np.random.default_rng(0), 0.0

    def sample(self) -> float:
        """Return it."""
        return self.now

    def moves(self) -> None:
        """Go on by an iteration."""
        if self.chance.random() < 0.1:
            self.now = float(self.chance.choice([0.0, 0.5, 1.0]))


def small_loop(place: Place, predictor: object, covariates: list[Load]) -> BusyLoop:
    policy = Policy(warmup=2)
    return BusyLoop(
        place,
        torch.nn.Linear(16, 4),
        torch.randn(64 * 16, 16),
        predictor=predictor,
        policy=policy,
        covariates=covariates,
    )


def no_waits(place: Place, found: Found) -> None:
    """Let a balanced loop run ahead of the device."""
    loop = small_loop(place, EWMA(), [])
    for _ in range(SETTLED):
        loop.step(0.001)
    torch.cuda.synchronize()
    with place.waits() as waits:
        began = time.perf_counter()
        for _ in range(10):
            loop.step(0.02)
        launched = time.perf_counter() - began
    torch.cuda.synchronize()
    done = time.perf_counter() - began
    found.said.append(
        f"Ten balanced steps of 20 ms were launched in {1e3 * launched:.1f} ms and done after {1e3 * done:.1f} ms; "
        f"the library waited for the device {len(ours(waits))} times."
    )
    found.require(not ours(waits), f"the library waits for the device: {sorted(set(ours(waits)))}")
    if place.real:
        found.said.append(f"All waits of the process, the sums of gloo among them: {len(waits)}.")


def ahead(place: Place, found: Found) -> None:
    """Forecast two iterations ahead from a covariate that says how long the device's work is."""
    rows = [["predictor", "horizon", "relative error of the forecast (RMS)", "iterations known"]]
    errors = {}
    for name, predictor in {"RLS with the covariate": RLS(covariates=["load"]), "last value": LastValue()}.items():
        load = Load()
        loop, seen = small_loop(place, predictor, [load]), []
        loop.balance.on_iteration.append(lambda one, seen=seen: seen.append((one.forecast_seconds[0], one.seconds[0])))
        losses = deque([torch.zeros(())])
        for _ in range(150 if place.real else 60):
            losses.append(loop.step(0.004 * (1 + load.now)))
            losses.popleft().item()  # of the step before, as loops print it: so the device is one step behind
            load.moves()
        known = np.array([pair for pair in seen[20:] if np.isfinite(pair).all()])
        errors[name] = float(np.sqrt(np.square(known[:, 0] / known[:, 1] - 1).mean()))
        horizon = loop.balance.balancer.horizon
        found.require(horizon == 2, f"plans on a device must be for two iterations ahead, not {horizon}")
        rows.append([name, str(horizon), f"{errors[name]:.3f}", str(len(known))])
        loop.balance.close()
    found.tables.append(rows)


def part(place: Place, found: Found) -> None:
    """Run all three."""
    join(place)
    lengths(place, found)
    no_waits(place, found)
    ahead(place, found)
    if not place.real:
        found.left_out.append("How exact a device's events are, and whether kernels or gloo wait for it.")


if __name__ == "__main__":
    run(part)
