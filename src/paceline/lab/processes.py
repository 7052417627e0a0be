"""Processes of an experiment: each in a place of its own, ended with their parent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.recording.control_group import find_mounts

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext


def join_control_group(folders: Sequence[str]) -> None:
    """Move the calling process into the control group of these folders."""
    for folder in folders:
        (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))


def start_until_exit(
    stack: ExitStack, function: Callable[..., None], arguments: Sequence[Any], count: int
) -> ProcessContext:
    """Start processes, each of which calls ``function(number, *arguments)``; they end with ``stack`` at the latest."""
    from torch.multiprocessing.spawn import start_processes

    context: ProcessContext = start_processes(_run_until_parent_ends, (function, *arguments), count, join=False)
    for process in context.processes:
        stack.callback(process.join)
        stack.callback(process.kill)  # does nothing if it has ended
    return context


def _run_until_parent_ends(number: int, function: Callable[..., None], *arguments: Any) -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # also if it was killed, and before this process began
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    function(number, *arguments)


@contextmanager
def quota_placement(quota: float, root: str | Path = "/") -> Iterator[Sequence[str] | None]:
    """Make a control group with a quota for a worker, and yield its folders; None where this machine lets us make none.

    ``quota`` are the cores that it may use, and ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    mounts = find_mounts(root)
    _remove_stale(mounts, Path(root))
    period = 5000  # microseconds: much shorter than an iteration, so that each spans many periods
    settings: dict[str, object] = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": round(quota * period)}
    # Version 2 find_mounts beside version 1 has no quotas, but it reports the pressure of each group.
    name = f"paceline-{os.getpid()}-0"
    folders = list(dict.fromkeys(mounts[kind] / name for kind in ("cpu", "cpuacct", "") if kind in mounts))
    with ExitStack() as made:
        place: Sequence[str] | None = None
        with suppress(OSError):
            if "cpu" not in mounts and "" in mounts:
                (mounts[""] / "cgroup.subtree_control").write_text("+cpu")
                settings = {"cpu.max": f"{round(quota * period)} {period}"}
            for folder in folders:
                folder.mkdir()
                made.callback(_remove, folder)
            for setting, value in settings.items() if folders else ():
                (folders[0] / setting).write_text(str(value))
            place = list(map(str, folders)) or None
        if place is None:
            made.close()
        yield place


def _remove_stale(mounts: Mapping[str, Path], root: Path) -> None:
    """Remove control groups of processes that were killed; a group that still holds processes is left alone."""
    for mount in set(mounts.values()):
        for folder in mount.glob("paceline-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdigit() and not (root / "proc" / pid).exists():
                with suppress(OSError):
                    folder.rmdir()


def _remove(folder: Path) -> None:
    # The kernel keeps a group busy for a moment after its last process was reaped.
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(0.02)
    folder.rmdir()
