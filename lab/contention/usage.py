"""Usage traces as contention: how busy real hosts were decides how many competitors are busy beside each worker.

Axes: S slots of time, H hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.datasets.trace import Trace
from paceline.lab.contention.patterns import Competitor, Span

CYCLE_SECONDS = 1.0
"""A competitor that is busy for a part of the time is busy once per cycle, from a random moment on."""
LOAD_SECONDS, LOAD_MEMORY_SECONDS = 5.0, 60.0
"""Seconds between Linux's updates of the one-minute load average, and the average's time constant."""


@dataclass(frozen=True)
class Usage:
    """Usage of hosts, slot by slot. In a replay, the first host decides the competitors of worker 0, and so on.

    Parameters
    ----------
    share_SH
        How busy each host was in each slot, ``[S, H]``: 0 is idle, 1 means all of its cores. It repeats if a job lasts
        longer.
    slot_seconds
        Length of a slot in the replay.
    source
        Where it was measured, for the recorded trace's ``meta``.

    Raises
    ------
    ValueError
        If a share is negative or missing, there is no share at all, or the length of a slot is not positive.

    Examples
    --------
    One host is idle, then half busy, then full; the other is always full. Each worker has two competitors:

    >>> usage = Usage([[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]], slot_seconds=2.0)
    >>> for competitor in usage.plan(workers=2, competitors=2, seconds=6.0, seed=0):
    ...     print(competitor.worker, [(float(start), float(stop)) for start, stop in competitor.spans])
    0 [(2.0, 6.0)]
    0 [(4.0, 6.0)]
    1 [(0.0, 6.0)]
    1 [(0.0, 6.0)]
    """

    share_SH: ArrayLike
    slot_seconds: float
    source: str = "given"

    def __post_init__(self) -> None:
        share_SH = np.array(self.share_SH, dtype=np.float64)
        if share_SH.ndim != 2 or share_SH.size == 0:
            raise ValueError(f"share_SH must have the shape [slots, hosts], got {share_SH.shape}")
        if not (share_SH >= 0).all():
            at = np.argwhere(~(share_SH >= 0))[0].tolist()
            raise ValueError(f"share_SH must not be negative or missing, got {share_SH[tuple(at)]} at slot, host {at}")
        if not self.slot_seconds > 0:
            raise ValueError(f"slot_seconds must be more than 0, got {self.slot_seconds}")
        object.__setattr__(self, "share_SH", np.minimum(share_SH, 1.0))

    @classmethod
    def of_trace(cls, trace: Trace, covariate: str, *, slot_seconds: float | None = None) -> Self:
        """Take a covariate of a trace, the CPU usage as a share, as the usage of hosts: one host for each worker.

        Parameters
        ----------
        trace
            Its rows are the slots; speeds are not needed. A missing value repeats the host's last one.
        covariate
            The name of the covariate (a covariate, such as ``cpu``).
        slot_seconds
            Length of a slot; by default the median distance between the times in the trace's ``start``.

        Raises
        ------
        ValueError
            If the trace has no such covariate, or neither the trace nor ``slot_seconds`` gives the length of a slot.
        """
        if covariate not in trace.covariate_names or (panel := trace.covariates_named([covariate])) is None:
            raise ValueError(f"covariate {covariate!r} is not in {trace!r}")
        if slot_seconds is None:
            if trace.start is None:
                raise ValueError(f"slot_seconds must be given: {trace!r} does not say when its rows were measured")
            slot_seconds = float(np.nanmedian(np.diff(trace.start, axis=0)))
        return cls(_filled(panel[:, :, 0]), slot_seconds, trace.meta.get("source", trace.name))

    def plan(self, workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
        """Return the competitors of each worker, and when: a share ``s`` keeps ``s * competitors`` of them busy."""
        share_SH = np.asarray(self.share_SH)
        slots = np.arange(int(np.ceil(seconds / self.slot_seconds))) % len(share_SH)
        sites = [(w, c) for w in range(workers) for c in range(competitors)]
        planned = []
        for w, c in sites:
            busy_S = np.clip(share_SH[slots, w % share_SH.shape[1]] * competitors - c, 0.0, 1.0)
            spans = _spans(busy_S, self.slot_seconds, seconds, np.random.default_rng([seed, w, c]))
            planned.append(Competitor(w, spans))
        return planned

    def __str__(self) -> str:
        share_SH = np.asarray(self.share_SH, dtype=np.float64)
        slots, hosts = share_SH.shape
        return f"{slots} slots of {self.slot_seconds:g} s of {hosts} hosts, mean {share_SH.mean():.3g}; {self.source}"


def load_without_averaging(load_T: ArrayLike, interval_seconds: float = LOAD_SECONDS) -> NDArray[np.float64]:
    """Undo Linux's averaging of the load over a minute: return how many tasks ran or were ready at each sample.

    Parameters
    ----------
    load_T
        One-minute load averages, in tasks or as a share of cores, one per update by the kernel.
    interval_seconds
        Seconds between two of them.

    Returns
    -------
    ndarray
        The momentary load, one value shorter than the input.

    Examples
    --------
    When two tasks start, the reported load rises slowly; the momentary load shows them at once:

    >>> averaged = [2 * (1 - np.exp(-5 * k / 60)) for k in range(5)]
    >>> load_without_averaging(averaged)
    array([2., 2., 2., 2.])
    """
    load_T = np.asarray(load_T, dtype=np.float64)
    kept = np.exp(-interval_seconds / LOAD_MEMORY_SECONDS)
    return np.asarray(np.maximum((load_T[1:] - kept * load_T[:-1]) / (1 - kept), 0.0))


def _spans(busy_S: NDArray[np.float64], slot: float, seconds: float, rng: np.random.Generator) -> list[Span]:
    # Each slot is cut into cycles. Spans that touch or overlap are joined, so that a busy host has no pauses.
    cycles = max(1, round(slot / CYCLE_SECONDS))
    length = slot / cycles
    spans: list[Span] = []
    for at, busy in enumerate(np.repeat(busy_S, cycles)):
        start = at * length + rng.uniform(0.0, (1.0 - busy) * length)
        stop = min(start + busy * length, seconds)
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], stop)
        elif start < stop:
            spans.append((float(start), float(stop)))
    return spans


def _filled(share_SH: NDArray[np.float64]) -> NDArray[np.float64]:
    # A missing share repeats the last known one; before the first known share, it is that one; without any, it is 0.
    known_SH = np.isfinite(share_SH)
    last_SH = np.maximum.accumulate(np.where(known_SH, np.arange(len(share_SH))[:, None], -1), axis=0)
    first_H = np.argmax(known_SH, axis=0)
    filled_SH = np.take_along_axis(share_SH, np.where(last_SH < 0, first_H, last_SH), axis=0)
    return np.nan_to_num(filled_SH)
