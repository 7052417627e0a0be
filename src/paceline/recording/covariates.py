"""Covariates of a worker's speed, such as its competitors, sampled at every boundary.

A covariate is a small named object with one job: a class with a ``name``, a ``unit`` and ``sample``.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.recording.control_group import (
    ControlGroup,
    File,
    Growth,
    Whereabouts,
    cores_granted,
    field,
    number,
    quota_files,
    used_seconds,
)

if TYPE_CHECKING:
    Made = Callable[[ControlGroup | None, Path], "Covariate"]
    import torch


class Covariate(Protocol):
    """A factor that changes a worker's speed, such as competing tasks, sampled at every boundary."""

    @property
    def name(self) -> str:
        """The covariate's name in traces."""
        ...

    @property
    def unit(self) -> str:
        """The unit of its values."""
        ...

    def sample(self) -> float:
        """Return the value now, or since the last call; NaN if it cannot be read."""
        ...


class Followed:
    """A covariate of this process's control group; a move to another group replaces it by one that reads that group.

    ``made`` makes the covariate of a group, or of the whole machine if there is no group; one without a quota is none,
    except for covariates of ``any_group``.
    """

    def __init__(self, made: Made, where: Whereabouts, root: Path, *, any_group: bool = False) -> None:
        self._made, self._where, self._root, self._any_group = made, where, root, any_group
        self._group = where.group()
        self._covariate = self._made_now()
        self.name, self.unit = self._covariate.name, self._covariate.unit

    def sample(self) -> float:
        """Return the covariate's value; a change since the last boundary is NaN once after a move."""
        group = self._where.group()
        if group is not self._group:
            self._group, self._covariate = group, self._made_now()
        return self._covariate.sample()

    def _made_now(self) -> Covariate:
        group = self._where.group()
        return self._made(group if self._any_group or (group and group.cores is not None) else None, self._root)


def nvml_covariates(device: int | torch.device | None = None) -> list[Covariate]:
    """Return the covariates of a GPU; none if there is no GPU, no NVML, or no pynvml.

    Parameters
    ----------
    device
        The device that the process computes on: a ``torch.device`` (of the CPU, there are no covariates), or a GPU's
        number among those this process may use (``CUDA_VISIBLE_DEVICES``). By default the current device of torch, or
        ``LOCAL_RANK`` where torch does not use CUDA yet, or 0 if that is not set.

    Examples
    --------
    >>> [covariate.name for covariate in nvml_covariates(device=4096)]
    []
    """
    if find_spec("pynvml") is None or getattr(device, "type", "cuda") != "cuda":
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handle, sm = _handle(pynvml, _number(device)), pynvml.NVML_CLOCK_SM
        highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, sm)
    except (pynvml.NVMLError, IndexError):
        return []

    def busy() -> float:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100

    def memory() -> float:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return float(used.used / used.total)

    def clock() -> float:
        return float(pynvml.nvmlDeviceGetClockInfo(handle, sm) / highest)

    return [
        OfGPU("gpu_busy", "share of time", busy, pynvml.NVMLError),
        OfGPU("gpu_memory", "share of memory", memory, pynvml.NVMLError),
        OfGPU("gpu_clock", "share of the highest clock", clock, pynvml.NVMLError),
    ]


class OfGPU:
    """What all processes do to a GPU: how busy it is, its memory, or its clock, lower when hot or throttled."""

    def __init__(self, name: str, unit: str, read: Callable[[], float], error: type[Exception]) -> None:
        self.name, self.unit, self._read, self._error = name, unit, read, error

    def sample(self) -> float:
        """Return the value now; NaN if this GPU does not support it."""
        with contextlib.suppress(self._error):
            return self._read()
        return math.nan


def _number(device: int | torch.device | None) -> int:
    """Return the number of a device among those that this process may use."""
    if isinstance(device, int):
        return device
    if device is not None and device.index is not None:
        return device.index
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return int(cuda.current_device())
    return int(os.environ.get("LOCAL_RANK", "0"))


def _handle(nvml: Any, number: int) -> Any:
    """Return NVML's handle of a GPU by its number among those that this process may use.

    CUDA numbers only these, in an order that the environment may change; NVML numbers all, by their place on the bus.
    So the GPU is found by its name, which torch knows once it uses the GPU.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with contextlib.suppress(nvml.NVMLError, AssertionError, AttributeError, RuntimeError):
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{cuda.get_device_properties(number).uuid}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(number)
    name = visible.split(",")[number].strip()
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


ROOT = Path("/")


class ThrottledTime:
    """Counts the time in which a control group, or a parent, had used up its quota: their ``cpu.stat``.

    A quota may be set at any time, so a group without one is read as well. Parents are read because a quota is often
    set on one of them, and the worker's own counter then stands still.
    """

    def __init__(self, group: ControlGroup | None) -> None:
        files = [File(folder / "cpu.stat") for folder in group.lineage] if group else []
        self._own_file = files[0] if files else None
        self._above = [file for file in files[1:] if _throttled_seconds(file.text()) is not None]  # the root has none

    def seconds(self) -> float:
        """Return the seconds so far, summed over cores; 0 without a group, NaN if it was removed."""
        if self._own_file is None:
            return 0.0
        group_text = self._own_file.text()
        if not group_text:  # the group was removed
            return math.nan
        # A group of version 2 without the CPU controller cannot have a quota, and has no such counter.
        texts = [group_text, *(file.text() for file in self._above)]
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
        known, lowest = not self._pairs, float("inf")
        for pair in self._pairs:
            text = b" ".join([file.text() for file in pair])
            if len(text.split()) > 1:  # the tree's root has no quota files
                known, cores = True, cores_granted(text)
                lowest = lowest if cores is None else min(lowest, cores)
        if not known:
            return math.nan
        return self._every if lowest == float("inf") else lowest


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
    of_group = partial(_of_group, group, Whereabouts(root), root)
    return [
        of_group(CPUBusy),
        run_delay(root),
        of_group(Throttled, any_group=True),
        of_group(partial(pressure, "cpu")),
        of_group(Runnable),
        memory_available(root),
        of_group(partial(pressure, "memory")),
    ]


def all_covariates(
    group: ControlGroup | None = None, root: Path = ROOT, *, device: int | torch.device | None = None
) -> list[Covariate]:
    """Return every covariate that has something to measure here, for the calling process.

    These are the seven of :func:`default_covariates`, the quota if there is one now, and those of the GPU if NVML sees
    one: see :func:`~paceline.recording.covariates.nvml_covariates` for ``device``.
    """
    has_quota = (group or ControlGroup.of_this_process(root)) is not None
    quota = [_of_group(group, Whereabouts(root), root, CPUQuota)] if has_quota else []
    return [*default_covariates(group, root), *quota, *nvml_covariates(device)]


def _of_group(
    group: ControlGroup | None, where: Whereabouts, root: Path, made: Made, *, any_group: bool = False
) -> Covariate:
    """Return a covariate of the given group; without one, of the group that the process is in, even after a move."""
    return Followed(made, where, root, any_group=any_group) if group is None else made(group, root)


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
            return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else math.nan
        return used_seconds(text)


class FromFile:
    """A covariate that one kernel file tells: a number, or its growth per second since the last boundary."""

    def __init__(self, name: str, unit: str, file: Path, read: Callable[[bytes], float], *, grows: bool = True) -> None:
        self.name, self.unit, self._file, self._read = name, unit, File(file), read
        self._grown = Growth() if grows else None

    def sample(self) -> float:
        """Return the number, or its growth; NaN if the file does not tell."""
        value = self._read(self._file.text())
        return value if self._grown is None else self._grown.by(value)


def run_delay(root: Path = ROOT) -> FromFile:
    """Return the time that the thread was ready to run but waited for a core: ``/proc/self/schedstat``, second field.

    It covers only the main thread of the process, which does the computing if torch has one thread.
    """

    def read(text: bytes) -> float:
        fields = text.split()
        return int(fields[1]) * 1e-9 if len(fields) > 1 else math.nan

    return FromFile("run_delay", "s per s of wall time", root / "proc/self/schedstat", read)


def pressure(resource: str, group: ControlGroup | None = None, root: Path = ROOT) -> FromFile:
    """Return the share of time in which some task waited for a resource, ``cpu`` or ``memory``.

    It is that of the group, or of the machine: the line "some" of Linux's pressure-stall information.
    """

    def read(text: bytes) -> float:
        _, found, total = text.partition(b"total=")
        return number(total) * 1e-6 if found else math.nan

    file = group.pressure / f"{resource}.pressure" if group else None
    file = file if file and file.exists() else root / f"proc/pressure/{resource}"
    return FromFile(f"{resource}_pressure", "share of wall time", file, read)


def memory_available(root: Path = ROOT) -> FromFile:
    """Return the share of the machine's memory that is available: ``MemAvailable`` of ``/proc/meminfo``."""

    def read(text: bytes) -> float:
        return field(text, b"MemAvailable:") / (field(text, b"MemTotal:") or math.nan)

    return FromFile("memory_available", "share of memory", root / "proc/meminfo", read, grows=False)


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
            return (int(running[0]) - 1) / (os.cpu_count() or 1) if running else math.nan
        members = self._members.text().split()
        if not members:
            return math.nan
        others = {pid for pid in members if int(pid) != os.getpid()}
        folder = self._root / "proc"
        self._stats = {pid: self._stats.get(pid) or File(folder / pid.decode() / "stat") for pid in others}
        return float(sum(b") R" in stat.text() for stat in self._stats.values()))
