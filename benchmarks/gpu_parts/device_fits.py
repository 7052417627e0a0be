"""NARX and the gated network, fitted on the device and on the CPU: time, and error on the workers held out."""

from __future__ import annotations

import time

import numpy as np
from place import Found, Place, run

from paceline.datasets import Trace
from paceline.datasets.synthetic import synthetic_fleet
from paceline.eval import backtest
from paceline.predictors import NARX, GatedNARX, LastValue, Predictor
from paceline.predictors.network import Training
from paceline.training import fit

NEAR = 0.02
"""Relative difference of the errors that rounding, and the sums of another device, may make."""


def fleets(place: Place) -> tuple[list[Trace], Trace]:
    """Return traces to fit to, and one to judge on."""
    workers, steps = (100, 1000) if place.real else (6, 160)
    made = [synthetic_fleet("mixed", workers, steps, seed) for seed in (1, 2)]
    return made[:1], made[1]


def networks(place: Place) -> dict[str, Predictor]:
    """Return the networks by name."""
    training = Training(epochs=12 if place.real else 1, batch_size=16384 if place.real else 256)
    return {"NARX": NARX(training=training), "gated NARX": GatedNARX(training=training)}


def rmse(predictor: Predictor, trace: Trace) -> float:
    """Return the error of its forecasts over that of the last value."""
    return _error(predictor, trace) / _error(LastValue(), trace)


def _error(predictor: Predictor, trace: Trace) -> float:
    result = backtest(predictor, trace)
    return float(np.sqrt(np.nanmean(np.square(np.log(result.forecast_TW / result.actual_TW)[result.warmup :]))))


def part(place: Place, found: Found) -> None:
    """Fit each on both."""
    known, judged = fleets(place)
    rows = [["network", "device, s", "CPU, s", "error on the device", "error on the CPU"]]
    for name in networks(place):
        told = {}
        for device in (place.device, "cpu"):
            began = time.perf_counter()
            fitted = fit(networks(place)[name], known, device=device)
            told[device] = (time.perf_counter() - began, rmse(fitted, judged))
        (ours, error), (cpu, expected) = told[place.device], told["cpu"]
        rows.append([name, f"{ours:.1f}", f"{cpu:.1f}", f"{error:.4f}", f"{expected:.4f}"])
        found.require(abs(error / expected - 1) < NEAR, f"{name}: {error} on the device, {expected}")
    found.tables.append(rows)
    if not place.real:
        found.left_out.append("What a device is worth to a fit.")


if __name__ == "__main__":
    run(part)
