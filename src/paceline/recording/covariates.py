"""Covariates of a worker's speed, such as its competitors, sampled at every boundary.

Each is a function that reads one number, with a name and a unit; most read a file of the kernel.
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
    CounterRate,
    KernelFile,
    parse_field,
    parse_usage_seconds,
    quota_cores,
    throttled_seconds,
)

if TYPE_CHECKING:
    import torch


class Covariate(Protocol):
    """A factor that changes a worker's speed, such as competing tasks, sampled at every boundary."""

    @property
    def name(self) -> str:
        """The covariate's name in traces."""

    @property
    def unit(self) -> str:
        """The unit of its values."""

    def sample(self) -> float:
        """Return the value now, or since the last call; NaN if it cannot be read."""


class Reading:
    """A covariate that is read by a function: a number, or its growth per second since the last boundary."""

    def __init__(self, name: str, unit: str, read: Callable[[], float], *, is_cumulative: bool = False) -> None:
        self.name, self.unit, self._read = name, unit, read
        self._rate = CounterRate() if is_cumulative else None

    def sample(self) -> float:
        """Return the number, or its growth; NaN if it cannot be read."""
        value = self._read()
        return value if self._rate is None else self._rate.update(value)


def nvml_covariates(device: int | torch.device | None = None) -> list[Covariate]:
    """Return the covariates of a GPU; none if there is no GPU, no NVML, or no pynvml.

    ``device`` is the ``torch.device`` that the process computes on (of the CPU, there are no covariates), or a GPU's
    number among those this process may use (``CUDA_VISIBLE_DEVICES``). By default it is the current device of torch, or
    ``LOCAL_RANK`` where torch does not use CUDA yet, or 0 if that is not set.
    """
    if find_spec("pynvml") is None or getattr(device, "type", "cuda") != "cuda":
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handle, sm = _nvml_handle(pynvml, _device_index(device)), pynvml.NVML_CLOCK_SM
        highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, sm)
    except (pynvml.NVMLError, IndexError):
        return []

    def unless_unsupported(read: Callable[[], float]) -> Callable[[], float]:
        def read_or_nan() -> float:
            with contextlib.suppress(pynvml.NVMLError):
                return read()
            return math.nan

        return read_or_nan

    def read_memory_share() -> float:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return float(used.used / used.total)

    readings: dict[tuple[str, str], Callable[[], float]] = {
        ("gpu_busy", "share of time"): lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
        ("gpu_memory", "share of memory"): read_memory_share,
        ("gpu_clock", "share of the highest clock"): lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, sm) / highest),
    }
    return [Reading(name, unit, unless_unsupported(read)) for (name, unit), read in readings.items()]


def _device_index(device: int | torch.device | None) -> int:
    if isinstance(device, int):
        return device
    if device is not None and device.index is not None:
        return device.index
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return int(cuda.current_device())
    return int(os.environ.get("LOCAL_RANK", "0"))


def _nvml_handle(nvml: Any, index: int) -> Any:
    """Return NVML's handle of a GPU by its index among those that this process may use.

    CUDA numbers only these, in an order that the environment may change; NVML numbers all, by their place on the bus.
    So the GPU is found by its name, which torch knows once it uses the GPU.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with contextlib.suppress(nvml.NVMLError, AssertionError, AttributeError, RuntimeError):
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{cuda.get_device_properties(index).uuid}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    name = visible.split(",")[index].strip()
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


ROOT = Path("/")


def throttled_share(group: ControlGroup | None) -> Reading:
    """Return the covariate of throttled seconds, summed over cores, per second; 0 without a group or quota."""
    return Reading("throttled", "s per s of wall time", throttled_seconds(group), is_cumulative=group is not None)


def default_covariates(root: Path = ROOT) -> list[Covariate]:
    """Return the seven default covariates, for the calling process; ``root`` contains ``proc`` and ``sys``.

    Examples
    --------
    >>> [covariate.name for covariate in default_covariates()]
    ['cpu_busy', 'run_delay', 'throttled', 'cpu_pressure', 'runnable', 'memory_available', 'memory_pressure']
    """
    group = ControlGroup.current(root)
    limited = group if group and group.cores is not None else None  # where there is no quota, the machine counts
    delay, memory = KernelFile(root / "proc/self/schedstat"), KernelFile(root / "proc/meminfo")
    return [
        cpu_busy(limited, root),
        Reading("run_delay", "s per s of wall time", lambda: _parse_run_delay(delay.read()), is_cumulative=True),
        throttled_share(group),
        pressure("cpu", limited, root),
        runnable_tasks(limited, root),
        Reading("memory_available", "share of memory", lambda: _parse_available_share(memory.read())),
        pressure("memory", limited, root),
    ]


def all_covariates(root: Path = ROOT, *, device: int | torch.device | None = None) -> list[Covariate]:
    """Return every covariate that has something to measure here, for the calling process.

    These are the seven of :func:`default_covariates`, the quota if there is one now, and those of the GPU if NVML sees
    one: see :func:`~paceline.recording.covariates.nvml_covariates` for ``device``.
    """
    group = ControlGroup.current(root)
    quota = [cpu_quota(group)] if group and group.cores is not None else []
    return [*default_covariates(root), *quota, *nvml_covariates(device)]


def cpu_quota(group: ControlGroup | None) -> Reading:
    """Return the covariate of the cores that the control group may use now."""
    return Reading("cpu_quota", "cores", quota_cores(group))


def cpu_busy(group: ControlGroup | None, root: Path = ROOT) -> Reading:
    """Return the covariate of CPU time that *other* processes took from the worker's allowance; 0 if they took none.

    The allowance is the control group's quota; used time comes from ``cpuacct.usage``, or ``usage_usec`` of
    ``cpu.stat``, of the group with that quota. Without a quota, or if the group's CPU time is not counted (possible in
    version 1), the allowance is the cores that the process is pinned to, read in ``/proc/stat`` in steps of 10 ms.
    """
    group = group if group and group.usage.exists() else None
    pinned = os.sched_getaffinity(0)
    cores, rate = (group.cores if group else None) or len(pinned), CounterRate()
    file = KernelFile(group.usage if group else root / "proc/stat")
    parse: Callable[[bytes], float] = parse_usage_seconds
    if group is None:
        parse = partial(_parse_core_seconds, tuple(b"cpu%d " % core for core in pinned))

    def read() -> float:
        others = parse(file.read()) - time.process_time()
        return max(rate.update(others) / cores, 0.0)  # max keeps a NaN only as its first argument

    return Reading("cpu_busy", "share of the CPU allowance", read)


def _parse_core_seconds(names: tuple[bytes, ...], text: bytes) -> float:
    """Return the seconds for which some cores were busy so far, from ``/proc/stat``; NaN if it lacks them."""
    idle = (4, 5)  # the fourth and fifth counters of a core: idle, and idle while waiting for a disk
    cores = [line.split() for line in text.splitlines() if line.startswith(names)]
    ticks = [int(core[i]) for core in cores for i in range(1, 9) if i not in idle]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else math.nan


def _parse_run_delay(text: bytes) -> float:
    """Return for how long the main thread, which computes if torch has one thread, was ready to run but had no core."""
    fields = text.split()
    return int(fields[1]) * 1e-9 if len(fields) > 1 else math.nan


def pressure(resource: str, group: ControlGroup | None, root: Path = ROOT) -> Reading:
    """Return the covariate of the share of time in which some task waited for ``cpu`` or ``memory``.

    It is that of the group, or of the machine: the line "some" of Linux's pressure-stall information.
    """
    path = group.pressure / f"{resource}.pressure" if group else None
    file = KernelFile(path if path and path.exists() else root / f"proc/pressure/{resource}")

    def read() -> float:
        return parse_field(file.read(), b"total=") * 1e-6

    return Reading(f"{resource}_pressure", "share of wall time", read, is_cumulative=True)


def _parse_available_share(text: bytes) -> float:
    return parse_field(text, b"MemAvailable:") / (parse_field(text, b"MemTotal:") or math.nan)


def runnable_tasks(group: ControlGroup | None, root: Path = ROOT) -> Reading:
    """Return the covariate of competing tasks that are ready to run at this moment.

    In a control group, these are its own processes in state R (``/proc/<pid>/stat``) except the worker; processes of
    other groups, inside it or beside it, do not count. Without a group, they are the running tasks of the machine
    (``/proc/loadavg``) except the worker, per core.
    """
    source = KernelFile(group.cpu / "cgroup.procs" if group else root / "proc/loadavg")
    stats: dict[bytes, KernelFile] = {}

    def read_machine() -> float:
        running = source.read().replace(b"/", b" ").split()[3:4]
        return (int(running[0]) - 1) / (os.cpu_count() or 1) if running else math.nan

    def read_group() -> float:
        nonlocal stats
        members = source.read().split()
        if not members:
            return math.nan
        others = {pid for pid in members if int(pid) != os.getpid()}
        stats = {pid: stats.get(pid) or KernelFile(root / "proc" / pid.decode() / "stat") for pid in others}
        return float(sum(b") R" in stat.read() for stat in stats.values()))

    unit = "tasks; per core where there is no control group"
    return Reading("runnable", unit, read_group if group else read_machine)
