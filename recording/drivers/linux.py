"""Driving factors read from Linux: the CPU and memory of the machine and of the worker's control group.

Counters are reported as their growth per second since the last boundary. What cannot be read is NaN. Those of a
control group follow the process when it is moved to another: they begin anew there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from paceline.recording.control_group import ControlGroup, Whereabouts
from paceline.recording.drivers.driver import Driver
from paceline.recording.drivers.followed import Followed
from paceline.recording.drivers.quota import CPUQuota, Throttled
from paceline.recording.kernel_files import NAN, File, Growth, field, number

ROOT = Path("/")


def default_drivers(group: ControlGroup | None = None, root: Path = ROOT) -> list[Driver]:
    """Return the seven drivers of a worker, for the process that calls.

    Parameters
    ----------
    group
        The worker's control group, for good; by default that of the calling process, wherever it is moved.
    root
        The folder under which ``proc`` and ``sys`` are looked for.

    Examples
    --------
    >>> [driver.name for driver in default_drivers()]
    ['cpu_busy', 'run_delay', 'throttled', 'cpu_pressure', 'runnable', 'memory_available', 'memory_pressure']
    """
    of_group = _OfGroup(group, root)
    return [
        of_group(CPUBusy),
        RunDelay(root),
        of_group(Throttled, any_group=True),
        of_group(CPUPressure),
        of_group(Runnable),
        MemoryAvailable(root),
        of_group(MemoryPressure),
    ]


def all_drivers(group: ControlGroup | None = None, root: Path = ROOT) -> list[Driver]:
    """Return every driver that has something to tell here, for the process that calls.

    The seven of :func:`default_drivers`, the quota where there is one now, and those of the GPU where NVML sees one.
    Nothing of psutil's is among them: on Linux the kernel's own files tell the same, sooner.
    """
    from paceline.recording.drivers.nvml import nvml_drivers

    has_quota = (group or ControlGroup.of_this_process(root)) is not None
    quota = [_OfGroup(group, root)(CPUQuota)] if has_quota else []
    return [*default_drivers(group, root), *quota, *nvml_drivers()]


class _OfGroup:
    # Makes drivers of the group that was named, or else of the one that the process is in, wherever it is moved.
    def __init__(self, group: ControlGroup | None, root: Path) -> None:
        self._group, self._root, self._where = group, root, Whereabouts(root)

    def __call__(self, made: Callable[[ControlGroup | None, Path], Driver], *, any_group: bool = False) -> Driver:
        if self._group is not None:
            return made(self._group, self._root)
        return Followed(made, self._where, self._root, any_group=any_group)


class CPUBusy:
    """CPU that *other* processes took from the worker's allowance since the last boundary.

    The allowance is the control group's quota, read beside ``cpuacct.usage`` or ``usage_usec`` of ``cpu.stat`` of the
    group that has it; without a quota, or where nobody counts that group's CPU time (version 1 may not), it
    is the cores the process is pinned to, read in ``/proc/stat``, which counts in steps of 10 ms.
    """

    name, unit = "cpu_busy", "share of the CPU allowance"

    def __init__(self, group: ControlGroup | None = None, root: Path = ROOT) -> None:
        group = group if group and group.usage.exists() else None
        self._pinned = () if group else tuple(b"cpu%d " % core for core in os.sched_getaffinity(0))
        self._file = File(group.usage if group else root / "proc/stat")
        self._cores = (group.cores if group else None) or len(os.sched_getaffinity(0))
        self._grown = Growth()

    def sample(self) -> float:
        """Return the share, 0 when the worker has its allowance to itself."""
        others = self._used() - time.process_time()
        return max(self._grown.by(others) / self._cores, 0.0)  # in this order NaN stays NaN

    def _used(self) -> float:
        text = self._file.text()
        if self._pinned:
            cores = [line.split() for line in text.splitlines() if line.startswith(self._pinned)]
            idle = (4, 5)  # the fourth and fifth counter of a core: idle, and idle while a disk works
            ticks = [int(core[i]) for core in cores for i in range(1, 9) if i not in idle]
            return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else NAN
        return field(text, b"usage_usec") * 1e-6 if b"usage_usec" in text else number(text) * 1e-9


class RunDelay:
    """Time that the thread was ready to run but waited for a core: ``/proc/self/schedstat``, second field.

    It is read for the main thread of the process, which does the computing where torch has one thread.
    """

    name, unit = "run_delay", "s per s of wall time"

    def __init__(self, root: Path = ROOT) -> None:
        self._file = File(root / "proc/self/schedstat")
        self._grown = Growth()

    def sample(self) -> float:
        """Return seconds of waiting per second since the last boundary."""
        fields = self._file.text().split()
        return self._grown.by(int(fields[1]) * 1e-9 if len(fields) > 1 else NAN)


class _Pressure:
    # Linux's pressure-stall "some": the time during which at least one task waited for the resource.
    resource, name, unit = "", "", "share of wall time"

    def __init__(self, group: ControlGroup | None = None, root: Path = ROOT) -> None:
        own = group.pressure / f"{self.resource}.pressure" if group else None
        self._file = File(own if own and own.exists() else root / f"proc/pressure/{self.resource}")
        self._grown = Growth()

    def sample(self) -> float:
        """Return the share of the time since the last boundary."""
        _, found, total = self._file.text().partition(b"total=")
        return self._grown.by(number(total) * 1e-6 if found else NAN)


class CPUPressure(_Pressure):
    """Share of time in which some task waited for a CPU: ``cpu.pressure`` of the group, else of the machine."""

    resource, name = "cpu", "cpu_pressure"


class MemoryPressure(_Pressure):
    """Share of time in which some task waited for memory: ``memory.pressure`` of the group, else the machine's."""

    resource, name = "memory", "memory_pressure"


class Runnable:
    """Competing tasks that are ready to run at this moment.

    In a control group: its own processes in state R (``/proc/<pid>/stat``), without the worker and without those of
    groups inside it or beside it. Without one: the running tasks of the machine (``/proc/loadavg``) without the
    worker, per core.
    """

    name, unit = "runnable", "tasks; per core where there is no control group"

    def __init__(self, group: ControlGroup | None = None, root: Path = ROOT) -> None:
        self._root = root
        self._members = File(group.cpu / "cgroup.procs") if group else None
        self._load = File(root / "proc/loadavg")
        self._stats: dict[bytes, File] = {}

    def sample(self) -> float:
        """Return how many compete now."""
        if self._members is None:
            running = self._load.text().replace(b"/", b" ").split()[3:4]
            return (int(running[0]) - 1) / (os.cpu_count() or 1) if running else NAN
        members = self._members.text().split()
        if not members:
            return NAN
        others = {pid for pid in members if int(pid) != os.getpid()}
        self._stats = {pid: self._stats.get(pid) or self._stat(pid) for pid in others}
        return float(sum(b") R" in stat.text() for stat in self._stats.values()))

    def _stat(self, pid: bytes) -> File:
        return File(self._root / "proc" / pid.decode() / "stat")


class MemoryAvailable:
    """Share of the machine's memory that is available: ``MemAvailable`` of ``/proc/meminfo``."""

    name, unit = "memory_available", "share of memory"

    def __init__(self, root: Path = ROOT) -> None:
        self._file = File(root / "proc/meminfo")

    def sample(self) -> float:
        """Return the share now, between 0 and 1."""
        text = self._file.text()
        return field(text, b"MemAvailable:") / (field(text, b"MemTotal:") or NAN)
