"""Covariates of a CPU quota: how long it throttled the worker, and how many cores it grants.

Any parent of the worker's group (a container's, a service's) may have a quota, and it may be set, changed or removed at
any time.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.recording.control_group import NAN, ControlGroup, File, Growth, cores_granted, field, quota_files

ROOT = Path("/")


class ThrottledTime:
    """Counts the time in which a control group, or a parent, had used up its quota: their ``cpu.stat``.

    A quota may be set at any time, so a group without one is read as well. Parents are read because a quota is often
    set on one of them, and the worker's own counter then stands still.
    """

    def __init__(self, group: ControlGroup | None) -> None:
        files = [File(folder / "cpu.stat") for folder in group.lineage] if group else []
        self._own = files[0] if files else None
        self._above = [file for file in files[1:] if _throttled_seconds(file.text()) is not None]  # the root has none

    def seconds(self) -> float:
        """Return the seconds so far, summed over cores; 0 without a group, NaN if it was removed."""
        if self._own is None:
            return 0.0
        own = self._own.text()
        if not own:  # the group was removed
            return NAN
        # A group of version 2 without the CPU controller cannot have a quota, and has no such counter.
        texts = [own, *(file.text() for file in self._above)]
        return sum(_throttled_seconds(text) or 0.0 for text in texts)


class Throttled:
    """Share of the time in which the control group, or a parent, had used up its quota, summed over cores.

    It is 0 without a quota.
    """

    name, unit = "throttled", "s per s of wall time"

    def __init__(self, group: ControlGroup | None = None, root: Path = ROOT) -> None:
        self._time = ThrottledTime(group)
        self._none = group is None
        self._grown = Growth()

    def sample(self) -> float:
        """Return throttled seconds per second since the last boundary."""
        return 0.0 if self._none else self._grown.by(self._time.seconds())


def _throttled_seconds(text: bytes) -> float | None:
    """Return the throttled time in ``cpu.stat``, in seconds, or ``None`` if it is not there."""
    if b"throttled_usec" in text:  # version 2; version 1 counts nanoseconds
        return field(text, b"throttled_usec") * 1e-6
    return field(text, b"throttled_time") * 1e-9 if b"throttled_time" in text else None


class CPUQuota:
    """CPU that the control group may use now: ``cpu.max``, or ``cpu.cfs_quota_us`` beside ``cpu.cfs_period_us``.

    It is the smallest quota of the group and its parents, or the number of the machine's cores if there is none.
    """

    name, unit = "cpu_quota", "cores"

    def __init__(self, group: ControlGroup | None, root: Path = ROOT) -> None:
        lineage = group.lineage if group else ()
        self._pairs = [[File(path) for path in quota_files(folder)] for folder in lineage]
        self._every = float(os.cpu_count() or 1)  # asked once: it takes 8 us

    def sample(self) -> float:
        """Return the number of cores that the quota allows; NaN if the group was removed."""
        told, least = not self._pairs, float("inf")
        for pair in self._pairs:
            text = b" ".join([file.text() for file in pair])
            if len(text.split()) > 1:  # the tree's root has no quota files
                told, cores = True, cores_granted(text)
                least = least if cores is None else min(least, cores)
        if not told:
            return NAN
        return self._every if least == float("inf") else least
