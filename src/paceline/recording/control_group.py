"""The Linux control group of a process: how much CPU it may use, and where to read its counters.

Version 1 keeps every controller in its own folder tree, version 2 keeps all in one; many machines mount both. The
quotas of all parent groups bind a group as well.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path


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


def parse_number(text: bytes) -> float:
    """Return the number at the start of a text, NaN if there is none."""
    word, *_ = text.split(None, 1) or [b""]
    return float(word) if word.isdigit() else math.nan


def parse_field(text: bytes, key: bytes) -> float:
    """Return the number that follows a key, NaN if the key is absent."""
    return parse_number(text.partition(key)[2])


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
    return parse_field(text, b"usage_usec") * 1e-6 if b"usage_usec" in text else parse_number(text) * 1e-9


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
