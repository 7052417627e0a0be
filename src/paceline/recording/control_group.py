"""The Linux control group of a process: its CPU quota and counters, and how long work takes if the quota lasts.

Version 1 keeps every controller in its own folder tree, version 2 keeps all in one; many machines mount both. The
quotas of all parent groups bind a group as well.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class CounterRate:
    """Rate of a counter: its growth per second of wall time between two updates; NaN the first time."""

    def __init__(self) -> None:
        self._value, self._time = math.nan, math.nan

    def update(self, value: float) -> float:
        """Store the counter's value, and return its growth per second since the last update."""
        now = time.perf_counter()
        growth = (value - self._value) / (now - self._time)
        self._value, self._time = value, now
        return growth


class KernelFile:
    """A kernel file that is read repeatedly: opened once, and empty if it cannot be read."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._handle = -1
        else:
            weakref.finalize(self, os.close, self._handle)

    def read(self) -> bytes:
        """Return the current content."""
        if self._handle < 0:
            return b""
        try:
            # pread from 0 makes the kernel write the content again, without opening the file again.
            return os.pread(self._handle, 1 << 16, 0)
        except OSError:  # its subject is gone: a process that ended, or a control group that was removed
            return b""


def parse_field(text: bytes, key: bytes = b"") -> float:
    """Return the number that follows a key, or that at the start of the text; NaN if there is none."""
    word, *_ = (text.partition(key)[2] if key else text).split(None, 1) or [b""]
    return float(word) if word.isdigit() else math.nan


@dataclass(frozen=True)
class ControlGroup:
    """The folders and files of one control group."""

    cpu: Path  # the folder with the quota, cpu.stat and the list of processes
    usage: Path  # the file that counts the CPU time of the group with the smallest quota: cpuacct.usage, or cpu.stat
    pressure: Path  # the folder with cpu.pressure and memory.pressure, in the tree of version 2
    parents: tuple[Path, ...] = ()  # the folders of the visible parent groups, the nearest first

    @classmethod
    def current(cls, root: str | Path = "/") -> ControlGroup | None:
        """Return the group of the calling process, with or without a quota; ``None`` if no groups are mounted.

        ``root`` is the folder that contains ``proc`` and ``sys``.
        """
        mounts, paths = find_mounts(root), dict[str, str]()
        for line in _read_lines(Path(root) / "proc/self/cgroup"):
            _, names, path = line.split(":", 2)
            paths |= dict.fromkeys(names.split(","), path)
        lineages = {name: _resolve_lineage(mounts[name], paths[name]) for name in mounts if name in paths}
        unified = lineages.get("")
        tree = "cpu" if "cpu" in lineages else ""
        cpu = lineages.get(tree)
        if cpu is None:
            return None
        quotas = list(map(_read_quota_cores, cpu))
        binding = quotas.index(min(quotas))  # the smallest quota; the nearest group if several are equal
        usage = cpu[binding] / "cpu.stat"
        if "cpuacct" in lineages:  # a separate tree, in which container runtimes make groups of the same names
            usage = mounts["cpuacct"] / cpu[binding].relative_to(mounts[tree]) / "cpuacct.usage"
        return cls(cpu=cpu[0], usage=usage, pressure=(unified or cpu)[0], parents=cpu[1:])

    @property
    def lineage(self) -> tuple[Path, ...]:
        """The folders of the group and its parents: the quotas of all of them bind."""
        return (self.cpu, *self.parents)

    @property
    def cores(self) -> float | None:
        """The smallest CPU quota of the group and its parents, in cores, or ``None`` if there is none."""
        cores = min(map(_read_quota_cores, self.lineage))
        return cores if cores < math.inf else None


def find_mounts(root: str | Path = "/") -> dict[str, Path]:
    """Return the folder of each mounted controller of version 1, and that of version 2 under the key ``""``."""
    mounts: dict[str, Path] = {}
    for line in _read_lines(Path(root) / "proc/self/mounts"):
        _, folder, kind, options, *_ = line.split()
        names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
        mounts |= {name: Path(root) / folder.lstrip("/") for name in names}
    return mounts


def quota_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold a group's quota and its period: one in version 2, two in version 1."""
    if (folder / "cpu.max").exists():
        return (folder / "cpu.max",)
    return (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def parse_quota_cores(text: bytes) -> float:
    """Return the cores that a quota and its period allow, infinite for no quota.

    >>> parse_quota_cores(b"40000 100000"), parse_quota_cores(b"max 100000"), parse_quota_cores(b"-1 100000")
    (0.4, inf, inf)
    """
    quota, period = text.split()[:2]
    return math.inf if quota in (b"max", b"-1") else int(quota) / int(period)


def parse_usage_seconds(text: bytes) -> float:
    """Return the CPU seconds that a group has used, from ``cpu.stat`` (version 2) or ``cpuacct.usage``."""
    return parse_field(text, b"usage_usec") * 1e-6 if b"usage_usec" in text else parse_field(text) * 1e-9


def _read_quota_cores(folder: Path) -> float:
    try:
        return parse_quota_cores(b" ".join(file.read_bytes() for file in quota_files(folder)))
    except (OSError, ValueError):  # the tree's root has no such files
        return math.inf


def _resolve_lineage(mount: Path, path: str) -> tuple[Path, ...]:
    """Return the folders of a group and its parents, up to the mount.

    Inside a container the path may be the one on the host, while the mount is already a folder on that path. So leading
    parts of the path are dropped until the rest exists. A path that leads out of the mount is not followed.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return (mount,)
    inside = next((parts[k:] for k in range(len(parts)) if mount.joinpath(*parts[k:]).is_dir()), [])
    lineage = tuple(mount.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1))
    # Only the root of a whole tree of version 1 has the file release_agent. The root cannot have a quota, and every
    # file read costs 1 us, so it is left out.
    return lineage[:-1] if inside and (mount / "release_agent").exists() else lineage


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if os.access(path, os.R_OK) else []


# -- the quota, and how long work takes if it lasts -------------------------------------------------------------------


def throttled_seconds(group: ControlGroup | None) -> Callable[[], float]:
    """Return a function that reads for how long a control group, or a parent, had used up its quota so far.

    These are seconds, summed over cores: 0 without a group, NaN if it was removed. A quota may be set at any time, so a
    group without one is read as well. Parents are read because a quota is often set on one of them, and the worker's
    own counter then stands still.
    """
    files = [KernelFile(folder / "cpu.stat") for folder in group.lineage] if group else []
    # The root has no such counter.
    files[1:] = [file for file in files[1:] if _parse_throttled_seconds(file.read()) is not None]

    def read() -> float:
        texts = [file.read() for file in files]
        if texts and not texts[0]:  # the group was removed
            return math.nan
        # A group of version 2 without the CPU controller cannot have a quota, and has no such counter.
        return sum((_parse_throttled_seconds(text) or 0.0 for text in texts), 0.0)

    return read


def _parse_throttled_seconds(text: bytes) -> float | None:
    if b"throttled_usec" in text:  # version 2; version 1 counts nanoseconds
        return parse_field(text, b"throttled_usec") * 1e-6
    return parse_field(text, b"throttled_time") * 1e-9 if b"throttled_time" in text else None


def quota_cores(group: ControlGroup | None) -> Callable[[], float]:
    """Return a function that reads the smallest quota, in cores, of a control group and its parents.

    It is the number of the machine's cores if there is none, and NaN if the group was removed.
    """
    pairs = [[KernelFile(path) for path in quota_files(folder)] for folder in (group.lineage if group else ())]
    machine_cores = float(os.cpu_count() or 1)  # asked once: it takes 8 us

    def read() -> float:
        texts = [b" ".join([file.read() for file in pair]) for pair in pairs]
        quotas = [parse_quota_cores(text) for text in texts if len(text.split()) > 1]  # the tree's root has none
        if pairs and not quotas:
            return math.nan
        lowest = min(quotas, default=math.inf)
        return lowest if lowest < math.inf else machine_cores

    return read


class CPUSnapshot(NamedTuple):
    """Seconds of CPU time that a process has used, and seconds for which its group was throttled, so far."""

    cpu: float = 0.0
    throttled: float = 0.0


class QuotaTracker:
    """Tracks the CPU quota of this process's control group, and the CPU time that the process uses.

    ``cores`` is the quota; infinite without one, and NaN where other processes use a good part of it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._quota_cores = self.cores = math.inf
        self._uses_most_of_quota = True
        self._open_files()

    def snapshot(self) -> CPUSnapshot:
        """Return the CPU time used so far; only differences mean something."""
        # Nothing is throttled without a quota. This is asked twice in every step, when the caches hold the model: to
        # read the kernel's count took longer than all else that is measured.
        if self._quota_cores < math.inf:
            self._throttled_seconds = self._read_throttled()
        return CPUSnapshot(time.process_time(), self._throttled_seconds)

    def refresh(self) -> None:
        """Read the current quota."""
        cores = self._read_quota()
        cores = math.inf if not cores < self._machine_cores else cores  # also without groups, where it is NaN
        if cores != self._quota_cores:  # another group's quota may bind from now on
            self._quota_cores = cores
            self._open_files()
        self.cores = math.nan if math.isfinite(cores) and not self._check_uses_most_of_quota() else cores

    def _open_files(self) -> None:
        group = ControlGroup.current(self._root)
        self._read_quota, self._machine_cores = quota_cores(group), float(os.cpu_count() or 1)
        self._read_throttled = throttled_seconds(group)
        self._throttled_seconds = self._read_throttled()
        self._usage = KernelFile(group.usage) if group else None
        self._last: tuple[float, float, float] | None = None  # when, and seconds used by the process and its group

    def _check_uses_most_of_quota(self) -> bool:
        """Return whether this process uses most of the quota, by CPU times since the last check."""
        now, last = time.monotonic(), self._last
        # the kernel counts a group's CPU time in ticks of some ms
        if self._usage is not None and (last is None or now - last[0] >= 0.1):
            _, process, group = self._last = now, time.process_time(), parse_usage_seconds(self._usage.read())
            if last is not None:
                # Workers that share one quota are limited by it together: it counts only for the process that uses
                # most of it. False too if the group's time is not counted, as is possible in version 1.
                self._uses_most_of_quota = process - last[1] >= 0.8 * (group - last[2])
        return self._uses_most_of_quota


def sustained_seconds(seconds: float, cpu_used: CPUSnapshot, cores: float, threads: int = 1) -> float:
    """Return how long work takes if the quota holds for all of it.

    A quota grants a budget per period, of 100 ms as a rule. Work that follows a wait finds an unspent budget and runs
    at full speed; longer work is stopped until the next period. So what one step took says little about the next: at a
    quarter of a core the same 11 ms of computing take 11 ms, or 86. In the long run they take 11 / 0.25 = 44 ms.

    ``seconds`` is what the work took, waiting for others left out, and ``cores`` the quota that holds from now on;
    infinite for none, NaN if it is not known. Throttled seconds are counted on every core that ``threads`` use.

    >>> short, long = CPUSnapshot(cpu=0.011), CPUSnapshot(cpu=0.011, throttled=0.075)
    >>> sustained_seconds(0.011, short, cores=0.25), sustained_seconds(0.086, long, cores=0.25)
    (0.044, 0.044)
    """
    if math.isnan(cores):
        return seconds
    running = seconds
    if cpu_used.throttled > 0:  # a CPU second takes at least this long, whatever was counted as throttled
        running = min(seconds, max(seconds - cpu_used.throttled / threads, cpu_used.cpu / threads))
    return max(running, cpu_used.cpu / cores)
