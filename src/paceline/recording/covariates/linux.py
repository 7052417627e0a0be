"""Covariates read from Linux: the CPU and memory of the machine and of the worker's control group.

Counters are reported as their growth per second since the last boundary. A value that cannot be read is NaN. Covariates
of a control group follow the process when it is moved to another group, and start again there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.recording.control_group import NAN, ControlGroup, File, Growth, Whereabouts, field, number, used_seconds
from paceline.recording.covariates.covariate import Covariate
from paceline.recording.covariates.followed import Followed
from paceline.recording.covariates.quota import CPUQuota, Throttled

if TYPE_CHECKING:
    import torch

ROOT = Path("/")


def default_covariates(group: ControlGroup | None = None, root: Path = ROOT) -> list[Covariate]:
    """Return the seven default covariates, for the calling process.

    Parameters
    ----------
    group
        The worker's control group, as a fixed choice; by default that of the calling process, even after a move.
    root
        The folder that contains ``proc`` and ``sys``.

    Examples
    --------
    >>> [covariate.name for covariate in default_covariates()]
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


def all_covariates(
    group: ControlGroup | None = None, root: Path = ROOT, *, device: int | torch.device | None = None
) -> list[Covariate]:
    """Return every covariate that has something to measure here, for the calling process.

    These are the seven of :func:`default_covariates`, the quota if there is one now, and those of the GPU if NVML sees
    one: see :func:`~paceline.recording.covariates.nvml.nvml_covariates` for ``device``. psutil's are left out: on Linux
    the kernel's own files give the same values faster.
    """
    from paceline.recording.covariates.nvml import nvml_covariates

    has_quota = (group or ControlGroup.of_this_process(root)) is not None
    quota = [_OfGroup(group, root)(CPUQuota)] if has_quota else []
    return [*default_covariates(group, root), *quota, *nvml_covariates(device)]


class _OfGroup:
    # Makes covariates of the given group; without one, of the group that the process is in, even after a move.
    def __init__(self, group: ControlGroup | None, root: Path) -> None:
        self._group, self._root, self._where = group, root, Whereabouts(root)

    def __call__(self, made: Callable[[ControlGroup | None, Path], Covariate], *, any_group: bool = False) -> Covariate:
        if self._group is not None:
            return made(self._group, self._root)
        return Followed(made, self._where, self._root, any_group=any_group)


class CPUBusy:
    """CPU time that *other* processes took from the worker's allowance since the last boundary.

    The allowance is the control group's quota; used time comes from ``cpuacct.usage``, or ``usage_usec`` of
    ``cpu.stat``, of the group with that quota. Without a quota, or if the group's CPU time is not counted (possible in
    version 1), the allowance is the cores that the process is pinned to, read in ``/proc/stat`` in steps of 10 ms.
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
        return max(self._grown.by(others) / self._cores, 0.0)  # max keeps a NaN only as its first argument

    def _used(self) -> float:
        text = self._file.text()
        if self._pinned:
            cores = [line.split() for line in text.splitlines() if line.startswith(self._pinned)]
            idle = (4, 5)  # the fourth and fifth counters of a core: idle, and idle while waiting for a disk
            ticks = [int(core[i]) for core in cores for i in range(1, 9) if i not in idle]
            return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else NAN
        return used_seconds(text)


class RunDelay:
    """Time that the thread was ready to run but waited for a core: ``/proc/self/schedstat``, second field.

    It covers only the main thread of the process, which does the computing if torch has one thread.
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
    # Linux's pressure-stall line "some": the time in which at least one task waited for the resource.
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
    """Share of time in which some task waited for a CPU: ``cpu.pressure`` of the group, or of the machine."""

    resource, name = "cpu", "cpu_pressure"


class MemoryPressure(_Pressure):
    """Share of time in which some task waited for memory: ``memory.pressure`` of the group, or of the machine."""

    resource, name = "memory", "memory_pressure"


class Runnable:
    """Competing tasks that are ready to run at this moment.

    In a control group, these are its own processes in state R (``/proc/<pid>/stat``) except the worker; processes of
    other groups, inside it or beside it, do not count. Without a group, they are the running tasks of the machine
    (``/proc/loadavg``) except the worker, per core.
    """

    name, unit = "runnable", "tasks; per core where there is no control group"

    def __init__(self, group: ControlGroup | None = None, root: Path = ROOT) -> None:
        self._root = root
        self._members = File(group.cpu / "cgroup.procs") if group else None
        self._load = File(root / "proc/loadavg")
        self._stats: dict[bytes, File] = {}

    def sample(self) -> float:
        """Return the number of competing tasks now."""
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
