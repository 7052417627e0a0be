"""Measure how long a training step takes for each batch size, on the device at hand.

Pass the model as a function ``make_step(batch_size, device)``, which returns a callable that runs one training step
of this batch size: :func:`example` is one.
"""

from __future__ import annotations

import gc
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline._require import require
from paceline.datasets.profiles import PROFILE_COLUMNS, UNCERTAINTY_COLUMN

if TYPE_CHECKING:
    import pandas as pd


Step = Callable[[], object]
MakeStep = Callable[[int, str], Step]


class StepError(ValueError):
    """The named object is not a ``make_step``; the message says why, and what is expected."""

    def __init__(self, sentence: str) -> None:
        expected = (
            "make_step(batch_size, device) must return a function that runs one training step when called, such as\n"
            "    def make_step(batch_size, device):\n"
            "        return lambda: train_once(images[:batch_size].to(device))"
        )
        super().__init__(f"{sentence}; {expected}")


logger = logging.getLogger(__name__)


def profile(
    make_step: MakeStep,
    sizes: Sequence[int],
    *,
    device: str = "cpu",
    name: str = "",
    model: str = "",
    warmup: int = 3,
    repeats: int = 5,
    precision: float = 0.03,
    max_passes: int = 15,
    progress: Callable[[int], None] = lambda size: None,
) -> pd.DataFrame:
    """Measure a training step at each batch size, in passes over all sizes, until the median of each is certain.

    The first pass is in rising order; if memory runs out, it finds the limit by bisection. The others are in random
    order, and each builds its steps again, so that neither a slow minute nor an unlucky visit looks like a slow size.

    Parameters
    ----------
    make_step
        Called with a batch size and the device; returns a callable that runs one training step of that batch. A step
        on CUDA need not synchronize.
    sizes
        Batch sizes to measure, in samples.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    name, model
        Names of the device and the model in the profile; by default the device's own name.
    warmup, repeats
        In each pass, number of steps before the timed ones, and number of timed steps, whose median counts.
    precision
        A size is certain once half the 95% interval of the median of its passes, of six or more, is at most this share
        of it.
    max_passes
        Passes after which the measurement ends all the same; 1 measures every size once.
    progress
        Called with each size before it is measured.

    Returns
    -------
    pandas.DataFrame
        A tidy profile as in :mod:`paceline.datasets.profiles`, in rising order of batch; ``seconds`` is NaN where
        memory did not suffice. ``uncertainty`` is half the 95% interval of ``seconds``, as a share of it; NaN after
        fewer than six passes. A host whose kernel kills processes for memory gives no warning: keep CPU sizes low.

    Raises
    ------
    ValueError
        If an argument is out of range, not even the smallest size fits into memory, or ``make_step`` returns no
        function.
    RuntimeError
        If one of these functions raises an error of its own.

    Examples
    --------
    >>> profile(lambda size, device: lambda: sum(range(1000 * size)), [2, 1], name="mine")[["device", "batch"]]
      device  batch
    0   mine    1.0
    1   mine    2.0
    """
    import pandas as pd

    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes must be batch sizes of at least 1 sample, got {list(sizes)}")
    if warmup < 0 or repeats < 1 or max_passes < 1:
        counts = f"{warmup}, {repeats} and {max_passes}"
        raise ValueError(f"warmup must be at least 0, repeats and max_passes at least 1, got {counts}")
    device_name = device
    if device.startswith("cuda"):
        require("torch", needed_by="profiling on CUDA", extra="torch")
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"device {device!r} is not available: torch finds no CUDA device. Use device='cpu'")
        device_name = torch.cuda.get_device_name(torch.device(device))
    visits: dict[int, list[float]] = {}

    def measure(size: int) -> bool:
        progress(size)
        seconds = _median_seconds(make_step, size, device, warmup, repeats)
        visits.setdefault(size, [])
        if not math.isnan(seconds):
            visits[size].append(seconds)
        return not math.isnan(seconds)

    for size in sorted(set(sizes)):
        if not measure(size):
            worked, failed = max((size for size, seconds in visits.items() if seconds), default=0), size
            if not worked:
                raise ValueError(f"even a batch of {size} does not fit into memory: choose smaller sizes")
            while failed - worked > max(1.0, 0.05 * worked):  # to 5%, or one sample
                middle = (worked + failed) // 2
                worked, failed = (middle, failed) if measure(middle) else (worked, middle)
            break
    order = random.Random(0)
    for _ in range(max_passes - 1):
        uncertainty = {size: median_uncertainty(seconds) for size, seconds in visits.items() if seconds}
        uncertain = [size for size, share in uncertainty.items() if not share <= precision]
        for size in order.sample(uncertain, len(uncertain)):
            measure(size)
    curve = ("measured", name or device_name, model)
    rows = [
        (*curve, float(size), statistics.median(seconds or [math.nan]), math.nan, "", median_uncertainty(seconds))
        for size, seconds in sorted(visits.items())
    ]
    return pd.DataFrame(rows, columns=[*PROFILE_COLUMNS, UNCERTAINTY_COLUMN])


def median_uncertainty(seconds: Sequence[float]) -> float:
    """Return half the 95% interval of the median of independent measurements, as a share of it; NaN of fewer than six.

    It lies between the k-th smallest and the k-th largest, where so many fall on one side of the true median with a
    chance of at most 2.5%.

    >>> median_uncertainty([1.0, 1.02, 0.98, 1.0, 1.04, 0.96, 1.0, 1.0, 7.0])
    0.03
    """
    from scipy.stats import binom

    if len(seconds) < 6:
        return math.nan
    ordered, below = sorted(seconds), int(binom.ppf(0.025, len(seconds), 0.5))
    return round((ordered[-below] - ordered[below - 1]) / 2 / statistics.median(ordered), 6)


def example(batch_size: int, device: str) -> Step:
    """Return a step of a small convolutional network on random images: the form of a ``make_step``. Needs torch."""
    require("torch", needed_by="paceline.training.profile:example", extra="torch")
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    ).to(device)
    images = torch.randn(batch_size, 3, 32, 32, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    model(images[:1])  # a first pass sets the size of the lazy last layer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _median_seconds(make_step: MakeStep, size: int, device: str, warmup: int, repeats: int) -> float:
    """Return the median time of one visit's steps, NaN if memory does not suffice. The step is freed before that."""
    try:
        step = make_step(size, device)
        if not callable(step):
            returned = "None" if step is None else f"a {type(step).__name__}"
            raise StepError(f"make_step({size}, {device!r}) returned {returned}")
        for _ in range(warmup):
            step()
        return statistics.median((_cuda_seconds if device.startswith("cuda") else _cpu_seconds)(step, device, repeats))
    except StepError:
        raise
    except (Exception, SystemExit) as error:
        if not _is_out_of_memory(error):
            raised = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise RuntimeError(f"make_step({size}, {device!r}), or its step, raised {raised}") from error
        logger.info("a batch of %d does not fit into memory: %s", size, error)
    finally:
        step = None  # type: ignore[assignment]  # free its tensors before the next size is tried
        gc.collect()
        if device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()
    return math.nan


def _cpu_seconds(step: Step, device: str, repeats: int) -> list[float]:
    clock = [time.perf_counter()]
    for _ in range(repeats):
        step()
        clock.append(time.perf_counter())
    return [after - before for before, after in pairwise(clock)]


def _cuda_seconds(step: Step, device: str, repeats: int) -> list[float]:
    """Time steps by events in the stream, queued one after the other as in training; one wait at the end."""
    import torch

    with torch.cuda.device(torch.device(device)):
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory")  # torch raises these as RuntimeError
    return isinstance(error, RuntimeError) and any(text in str(error) for text in words)
