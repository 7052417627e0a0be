"""The Linux control group that a process lives in: how much CPU it may use, and where its counters are read.

Version 1 keeps every controller in a folder tree of its own, version 2 keeps all in one; many machines mount both.
A group is bound by the quotas of all groups above it, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.recording.kernel_files import File

LOOKED_UP_EVERY = 0.1
"""Seconds between two looks at where the process is: a look takes 4 us, about as much as two drivers."""


@dataclass(frozen=True)
class ControlGroup:
    """Where one control group is read.

    Parameters
    ----------
    cpu
        The folder with the quota, ``cpu.stat`` and the list of processes.
    usage
        The file that counts CPU time: ``cpuacct.usage`` (version 1) or ``cpu.stat`` (version 2), of the group whose
        quota binds.
    pressure
        The folder with ``cpu.pressure`` and ``memory.pressure``, in the tree of version 2.
    above
        The folders of the groups that hold this one, the nearest first, as far as they can be seen from here.
    """

    cpu: Path
    usage: Path
    pressure: Path
    above: tuple[Path, ...] = ()

    @classmethod
    def of_this_process(cls, root: str | Path = "/") -> ControlGroup | None:
        """Return the group of the calling process, or ``None`` if neither it nor one above it has a CPU quota now.

        ``root`` is the folder under which ``proc`` and ``sys`` are looked for.

        Examples
        --------
        >>> ControlGroup.of_this_process("/nowhere") is None
        True
        """
        group = cls.around_this_process(root)
        return group if group is not None and group.cores is not None else None

    @classmethod
    def around_this_process(cls, root: str | Path = "/") -> ControlGroup | None:
        """Return the group of the calling process, with a quota or without; ``None`` where no groups are mounted."""
        mounts, paths = mounted(root), _paths(Path(root))
        lineages = {name: _lineage(mounts[name], paths[name]) for name in mounts if name in paths}
        unified = lineages.get("")
        tree = "cpu" if "cpu" in lineages else ""
        cpu = lineages.get(tree)
        if cpu is None:
            return None
        binding = cpu.index(min(cpu, key=_cores_or_all))  # the nearest of those that bind alike
        usage = cpu[binding] / "cpu.stat"
        if "cpuacct" in lineages:  # a tree of its own; who made the group there as well gave it the same name
            usage = mounts["cpuacct"] / cpu[binding].relative_to(mounts[tree]) / "cpuacct.usage"
        return cls(cpu=cpu[0], usage=usage, pressure=(unified or cpu)[0], above=cpu[1:])

    @property
    def lineage(self) -> tuple[Path, ...]:
        """The folder of the group, and of those that hold it: the quotas of all of them bind."""
        return (self.cpu, *self.above)

    @property
    def cores(self) -> float | None:
        """The smallest CPU quota of the group and those above it, in cores, or ``None`` where there is none."""
        quotas = [quota for folder in self.lineage if (quota := _cores(folder)) is not None]
        return min(quotas, default=None)


class Whereabouts:
    """The control group that this process is in now: looked up again when the process was moved.

    Launchers, and people, move a process after it began: a driver that holds on to the first group would tell of
    others' affairs for the rest of the run.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self._root = root
        self._file = File(Path(root) / "proc/self/cgroup")
        self._told: bytes | None = None
        self._group: ControlGroup | None = None
        self._looked = float("-inf")

    def group(self) -> ControlGroup | None:
        """Return the group, ``None`` where no groups are mounted; the same object until the process is moved."""
        now = time.monotonic()
        if now - self._looked >= LOOKED_UP_EVERY:
            self._looked, told = now, self._file.text()
            if told != self._told:
                self._told, self._group = told, ControlGroup.around_this_process(self._root)
        return self._group


def mounted(root: str | Path = "/") -> dict[str, Path]:
    """Return the folder of each mounted controller of version 1, and under ``""`` that of version 2."""
    mounts: dict[str, Path] = {}
    for line in _lines(Path(root) / "proc/self/mounts"):
        _, folder, kind, options, *_ = line.split()
        names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
        mounts |= {name: Path(root) / folder.lstrip("/") for name in names}
    return mounts


def quota_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold a group's quota and its period: one in version 2, two in version 1."""
    if (folder / "cpu.max").exists():
        return (folder / "cpu.max",)
    return (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def cores_granted(text: bytes) -> float | None:
    """Return the cores that a quota and its period are worth, ``None`` for no quota.

    >>> cores_granted(b"40000 100000"), cores_granted(b"max 100000"), cores_granted(b"-1 100000")
    (0.4, None, None)
    """
    quota, period = text.split()[:2]
    return None if quota in (b"max", b"-1") else int(quota) / int(period)


def _cores(folder: Path) -> float | None:
    try:
        return cores_granted(b" ".join(file.read_bytes() for file in quota_files(folder)))
    except (OSError, ValueError):  # the tree's root has no such files
        return None


def _cores_or_all(folder: Path) -> float:
    cores = _cores(folder)
    return float("inf") if cores is None else cores


def _paths(root: Path) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    return paths


def _lineage(mount: Path, path: str) -> tuple[Path, ...]:
    """Return the folder of a group and those above it, up to the mount.

    Inside a container the path may be told as the host sees it, while the mount already is a folder of that path: so
    its first parts are left off until the rest is there. A path that leads out of what is mounted is not followed.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return (mount,)
    inside = next((parts[k:] for k in range(len(parts)) if mount.joinpath(*parts[k:]).is_dir()), [])
    lineage = tuple(mount.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1))
    # Only the root of a whole tree of version 1 has this file; it can have no quota, and each file read costs 1 us.
    return lineage[:-1] if inside and (mount / "release_agent").exists() else lineage


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if os.access(path, os.R_OK) else []
