"""Batch time curves of three models, the error of their fit on sizes held out, and the limit of memory.

The models are those of datasets/gpu_h200 that torch alone has: an LSTM, an MLP, and a transformer of GPT-2's size.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from place import Found, Place, run
from torch import nn

from paceline.datasets.profiles import save_profile
from paceline.predictors.curve_fit import curve_seconds, fit_curve
from paceline.training.profile import example, profile

WORSE, NEAR = 1.25, 0.05
"""The part fails where the error of a fitted curve on sizes held out is so many times that of lines between the sizes
that were fitted, above five per cent, and above the uncertainty of the times: devices change kernels between sizes, so
no smooth curve can be exact."""

CURVES = "gpu_curves.csv"


class LSTM(nn.Module):
    """Two layers over 200 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(20000, 256), nn.LSTM(256, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last token."""
        return self.head(self.layers(self.tokens(tokens))[0][:, -1])


class Transformer(nn.Module):
    """Twelve layers of width 768 with a head over 50257 tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.tokens, self.layers = (
            nn.Embedding(50257, 768),
            nn.TransformerEncoder(layer, 12, enable_nested_tensor=False),
        )
        self.head = nn.Linear(768, 50257, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every token."""
        return self.head(self.layers(self.tokens(tokens))).flatten(0, 1)


def mlp() -> nn.Module:
    """Return three wide layers."""
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def of(make, inputs, classes: int, low: bool):
    """Return a ``make_step`` for :func:`profile`."""

    def make_step(size: int, device: str):
        with torch.device(device):  # to fill weights on the CPU takes seconds, in every visit of a size
            model, given = make().train(), inputs(size)
            targets = torch.randint(classes, (size * (given.shape[1] if classes > 10**4 else 1),))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=low):
                loss = nn.functional.cross_entropy(model(given), targets)
            loss.backward()
            optimizer.step()

        return step

    return make_step


MODELS = {
    "lstm 200 tf32": (
        of(LSTM, lambda n: torch.randint(20000, (n, 200)), 2, False),
        [1, 4, 16, 32, 64, 128, 256, 512, 1024],
    ),
    "mlp tf32": (of(mlp, lambda n: torch.randn(n, 1024), 10, False), [1, 16, 64, 256, 1024, 4096, 16384, 65536]),
    "transformer 512 bf16": (
        of(Transformer, lambda n: torch.randint(50257, (n, 512)), 50257, True),
        [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
    ),
}


def held_out_errors(curve: pd.DataFrame) -> tuple[float, float]:
    """Fit every second size, from the first and from the second on; return the mean relative error on the others.

    The second is that of lines between the sizes fitted, on logarithmic axes.
    """
    batch_N, seconds_N = curve["batch"].to_numpy(float), curve["seconds"].to_numpy()
    errors: tuple[list[float], list[float]] = ([], [])
    for first in (0, 1):
        fitted, held = slice(first, None, 2), slice(1 - first, None, 2)
        fit = fit_curve(batch_N[fitted], seconds_N[fitted])
        errors[0].extend(np.abs(np.log(curve_seconds(fit, batch_N[held]) / seconds_N[held])))
        lines = between(np.log(batch_N[held]), np.log(batch_N[fitted]), np.log(seconds_N[fitted]))
        errors[1].extend(np.abs(lines - np.log(seconds_N[held])))
    return float(np.mean(errors[0])), float(np.mean(errors[1]))


def between(x_M: np.ndarray, x_N: np.ndarray, y_N: np.ndarray) -> np.ndarray:
    """Return the values of lines through points, the first and the last of them prolonged."""
    place_M = np.clip(np.searchsorted(x_N, x_M), 1, len(x_N) - 1)
    share_M = (x_M - x_N[place_M - 1]) / (x_N[place_M] - x_N[place_M - 1])
    return y_N[place_M - 1] + share_M * (y_N[place_M] - y_N[place_M - 1])


def memory_limit(place: Place, found: Found) -> None:
    """Profile until memory ends, and see that all of it comes back."""
    largest, repeats = (2**21, 3) if place.real else (2**16, 2)
    sizes = [8 * 2**k for k in range(int(math.log2(largest / 8)) + 1)]
    example(8, place.device)()  # libraries keep a workspace for good, 65 MiB of cuBLAS on an H200: that is no leak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    curve = profile(example, sizes, device=place.device, model="convolutional", warmup=1, repeats=repeats)
    if place.real:
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_allocated() - before
    worked = curve.dropna(subset=["seconds"])
    found.require(len(worked) < len(curve), f"memory did not end at {largest} samples")
    found.require(kept < 2**20, f"{kept / 2**20:.1f} MiB were not freed after memory ran out")
    found.said.append(
        f"Memory: a convolutional network fits up to {worked.batch.max():.0f} samples; {max(kept, 0) / 2**20:.1f} MiB "
        "were not freed afterwards."
    )


def part(place: Place, found: Found) -> None:
    """Profile the models, then find the limit."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rows = [["model", "largest size", "its step, ms", "mean error on held-out sizes", "of lines between sizes"]]
    curves = []
    for name, (make, sizes) in MODELS.items() if place.real else ():
        curve = profile(make, sizes, device=place.device, model=name, warmup=2, max_passes=7)
        error, lines = held_out_errors(curve)
        rows.append(
            [name, f"{curve.batch.iloc[-1]:.0f}", f"{1e3 * curve.seconds.iloc[-1]:.2f}", f"{error:.1%}", f"{lines:.1%}"]
        )
        near = max(WORSE * lines, NEAR, float(curve["uncertainty"].mean()))
        found.require(error < near, f"{name}: the curve is off by {error:.0%} on held-out sizes, lines by {lines:.0%}")
        curves.append(curve)
        save_profile(pd.concat(curves, ignore_index=True), place.folder / CURVES)
    place.limit_memory()
    memory_limit(place, found)
    if curves:
        found.tables.append(rows)
        found.said.append(f"The curves: `{CURVES}`.")
    else:
        found.left_out.append("Curves of a device, and what activations take of its memory.")


if __name__ == "__main__":
    run(part)
