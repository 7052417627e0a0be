"""The Linux control group that a process lives in: how much CPU it may use, and where its counters are read.

Version 1 keeps every controller in a folder tree of its own, version 2 keeps all in one; many machines mount both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ControlGroup:
    """Where one control group is read.

    Parameters
    ----------
    cpu
        The folder with the quota, ``cpu.stat`` and the list of processes.
    usage
        The file that counts CPU time: ``cpuacct.usage`` (version 1) or ``cpu.stat`` (version 2).
    pressure
        The folder with ``cpu.pressure`` and ``memory.pressure``, in the tree of version 2.
    """

    cpu: Path
    usage: Path
    pressure: Path

    @classmethod
    def of_this_process(cls, root: str | Path = "/") -> ControlGroup | None:
        """Return the group of the calling process, or ``None`` if it has no CPU quota.

        ``root`` is the folder under which ``proc`` and ``sys`` are looked for.

        Examples
        --------
        >>> ControlGroup.of_this_process("/nowhere") is None
        True
        """
        mounts, paths = mounted(root), _paths(Path(root))
        folders = {name: _folder(mounts[name], paths[name]) for name in mounts if name in paths}
        unified = folders.get("")
        cpu = folders.get("cpu", unified)
        if cpu is None:
            return None
        usage = folders["cpuacct"] / "cpuacct.usage" if "cpuacct" in folders else cpu / "cpu.stat"
        group = cls(cpu=cpu, usage=usage, pressure=unified or cpu)
        return group if group.cores is not None else None

    @property
    def cores(self) -> float | None:
        """The CPU quota in cores, or ``None`` where there is none."""
        try:
            if (self.cpu / "cpu.max").exists():
                quota, period = (self.cpu / "cpu.max").read_text().split()
            else:
                quota, period = ((self.cpu / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
        return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)


def mounted(root: str | Path = "/") -> dict[str, Path]:
    """Return the folder of each mounted controller of version 1, and under ``""`` that of version 2."""
    mounts: dict[str, Path] = {}
    for line in _lines(Path(root) / "proc/self/mounts"):
        _, folder, kind, options, *_ = line.split()
        names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
        mounts |= {name: Path(root) / folder.lstrip("/") for name in names}
    return mounts


def _paths(root: Path) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    return paths


def _folder(mount: Path, path: str) -> Path:
    # Inside a container the path may be told as the host sees it, while the mount already is that folder.
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if os.access(path, os.R_OK) else []
