"""Usage traces as contention: how busy real hosts were decides how many competitors stand beside each worker.

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
"""A competitor that is busy for a part of the time is so once in each cycle, at a random moment."""
LOAD_SECONDS, LOAD_MEMORY_SECONDS = 5.0, 60.0
"""Linux renews the load average so often, and averages it over so long."""


@dataclass(frozen=True)
class Usage:
    """How busy hosts were, slot by slot; replayed, its first host's competitors stand beside worker 0, and so on.

    Parameters
    ----------
    share_SH
        How busy each host was in each slot, ``[S, H]``: 0 is idle, 1 is all of its cores. Read over and over again
        when a job lasts longer.
    slot_seconds
        How long a slot lasts in the replay.
    source
        Where it was measured, for the recorded trace's ``meta``.

    Raises
    ------
    ValueError
        If a share is negative or missing, there is none, or a slot does not last.

    Examples
    --------
    One host is idle, then half busy, then full; the other is always full. Two competitors stand beside each worker:

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
    def of_trace(cls, trace: Trace, driver: str, *, slot_seconds: float | None = None) -> Self:
        """Take a driver of a trace, one of CPU usage as a share, as the usage of as many hosts as it has workers.

        Parameters
        ----------
        trace
            Its rows are the slots; speeds are not needed. What a host did not tell is filled with what it told before.
        driver
            The name of the driver.
        slot_seconds
            How long a slot lasts; unless given, the median distance of the trace's ``start``.

        Raises
        ------
        ValueError
            If the trace has no such driver, or it does not say how long its rows last and neither do you.
        """
        if driver not in trace.driver_names or (panel := trace.drivers_named([driver])) is None:
            raise ValueError(f"driver {driver!r} is not in {trace!r}")
        if slot_seconds is None:
            if trace.start is None:
                raise ValueError(f"slot_seconds must be given: {trace!r} does not tell when its rows were measured")
            slot_seconds = float(np.nanmedian(np.diff(trace.start, axis=0)))
        return cls(_filled(panel[:, :, 0]), slot_seconds, trace.meta.get("source", trace.name))

    def plan(self, workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
        """Return who competes with which worker, and when: a share of ``s`` keeps ``s * competitors`` of them busy."""
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
    """Return the load that Linux averaged over a minute: how many tasks ran or were ready at each sample.

    Parameters
    ----------
    load_T
        One-minute load averages, in tasks or as a share of cores, one for each time the kernel renewed them.
    interval_seconds
        The time between two of them.

    Returns
    -------
    ndarray
        The momentary load, one shorter than what came in.

    Examples
    --------
    A machine on which two tasks begin to run tells a load that rises slowly; the tasks were there at once:

    >>> averaged = [2 * (1 - np.exp(-5 * k / 60)) for k in range(5)]
    >>> load_without_averaging(averaged)
    array([2., 2., 2., 2.])
    """
    load_T = np.asarray(load_T, dtype=np.float64)
    kept = np.exp(-interval_seconds / LOAD_MEMORY_SECONDS)
    return np.asarray(np.maximum((load_T[1:] - kept * load_T[:-1]) / (1 - kept), 0.0))


def _spans(busy_S: NDArray[np.float64], slot: float, seconds: float, rng: np.random.Generator) -> list[Span]:
    # Each slot is cut into cycles; what touches or overlaps is joined, so that a busy host does not pause between them.
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
    # What was not told is what was told before; before the first word, the first word; of a silent host, idleness.
    known_SH = np.isfinite(share_SH)
    last_SH = np.maximum.accumulate(np.where(known_SH, np.arange(len(share_SH))[:, None], -1), axis=0)
    first_H = np.argmax(known_SH, axis=0)
    filled_SH = np.take_along_axis(share_SH, np.where(last_SH < 0, first_H, last_SH), axis=0)
    return np.nan_to_num(filled_SH)
