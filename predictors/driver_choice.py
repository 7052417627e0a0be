"""Which drivers (driving factors) a predictor reads, and on what scale. Axis: D drivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array

if TYPE_CHECKING:
    from paceline.datasets import Trace


def shared_drivers(traces: Sequence[Trace], wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the wanted drivers, or all that the traces share if ``wanted`` is None.

    Raises
    ------
    ValueError
        If a wanted driver is not in every trace; the message lists those that are.
    """
    common = [n for n in traces[0].driver_names if all(n in trace.driver_names for trace in traces)]
    missing = [name for name in wanted or () if name not in common]
    if missing:
        raise ValueError(f"drivers {missing} are not in every trace to fit; those that are: {common}")
    return tuple(common) if wanted is None else wanted


def mean_and_scale(traces: Sequence[Trace], names: tuple[str, ...]) -> tuple[Array, Array]:
    """Return mean and deviation of each driver, ``[D]``; deviation 1 if a driver is never known or never changes."""
    panels = [p.reshape(-1, len(names)) for trace in traces if names and (p := trace.drivers_named(names)) is not None]
    values = np.concatenate([np.zeros((0, len(names))), *panels])
    known = np.isfinite(values)
    count_D = np.maximum(known.sum(axis=0), 1)
    mean_D = np.where(known, values, 0.0).sum(axis=0) / count_D
    scale_D = np.sqrt(np.where(known, np.square(values - mean_D), 0.0).sum(axis=0) / count_D)
    return mean_D, np.where(scale_D > 1e-12, scale_D, 1.0)
