"""Batch time curves of three models up to the limit of memory, and the error of their fit on sizes held out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from place import Found, Place, run
from torch import nn

from paceline.datasets.profiles import save_profile
from paceline.predictors.batch_time.curve_fit import fit_curve
from paceline.training.profile import example, profile

CURVES = Path(__file__).resolve().parents[1] / "gpu_curves.csv"
"""Written where a device ran: profiles as ``paceline profile`` writes them."""

FAR = 0.25
"""Mean error of a fitted curve on sizes held out beyond which the part fails."""


def dense(batch_size: int, device: str):
    """Return a training step of three wide layers."""
    return _step(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)), (batch_size, 1024), device)


def attention(batch_size: int, device: str):
    """Return a training step of two transformer layers over 128 tokens."""
    layer = nn.TransformerEncoderLayer(256, nhead=4, dim_feedforward=1024, dropout=0.0, batch_first=True)
    return _step(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (batch_size, 128, 256), device)


def _step(model: nn.Module, shape: tuple[int, ...], device: str):
    model = model.to(device)
    inputs = torch.randn(*shape, device=device)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        optimiser.step()

    return step


MODELS = {"convolutional": example, "dense": dense, "attention": attention}


def measured(place: Place, found: Found, name: str) -> pd.DataFrame:
    """Profile a model over sizes that double until memory ends, and see that it has recovered."""
    first, most, repeats = (8, 2**21, 10) if place.real else (4, 2**16, 2)
    sizes = [first * 2**k for k in range(int(math.log2(most / first)) + 1)]
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    curve = profile(MODELS[name], sizes, device=place.device, model=name, warmup=1 + place.real, repeats=repeats)
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_allocated() - before
    failed = curve["seconds"].isna()
    found.require(bool(failed.any()), f"{name}: memory did not end at {most} samples")
    found.require(kept < 2**20, f"{name}: {kept} bytes were not freed after memory ran out")
    MODELS[name](first, place.device)()  # a step of the smallest size, after memory ran out
    torch.cuda.synchronize()
    return curve


def error_on_held_out(curve: pd.DataFrame) -> float:
    """Fit the curve to every second size, and return the mean relative error on the others."""
    known = curve.dropna(subset=["seconds"])
    batch_N, seconds_N = known["batch"].to_numpy(), known["seconds"].to_numpy()
    floor, slope, intercept = fit_curve(batch_N[::2], seconds_N[::2])
    rest_N = np.maximum(floor, intercept + slope * batch_N[1::2])
    return float(np.abs(np.log(rest_N / seconds_N[1::2])).mean())


def part(place: Place, found: Found) -> None:
    """Profile the models, and keep the curves where a device ran."""
    rows = [["model", "sizes", "largest that fits", "its step, ms", "error on held-out sizes"]]
    curves = []
    for name in MODELS if place.real else ("convolutional",):
        curve = measured(place, found, name)
        known = curve.dropna(subset=["seconds"]).iloc[-1]
        error = error_on_held_out(curve)
        rows.append([name, str(len(curve)), f"{known.batch:.0f}", f"{1e3 * known.seconds:.2f}", f"{error:.1%}"])
        if place.real:
            found.require(error < FAR, f"{name}: the curve is off by {error:.0%} on held-out sizes")
        curves.append(curve)
    found.tables.append(rows)
    if place.real:
        save_profile(pd.concat(curves, ignore_index=True), CURVES)
        found.said.append(f"The curves, up to a limit of 3 GiB of memory: `benchmarks/{CURVES.name}`.")
    else:
        found.left_out.append("Curves of a device, two of the three models, and what activations take of its memory.")


if __name__ == "__main__":
    run(part, limit=True)
