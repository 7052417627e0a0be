"""Processes of an experiment: each in a place of its own, ended with their parent."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.recording.control_group import find_mounts


@dataclass(frozen=True)
class CPUPlacement:
    """Where one worker and its competitors run: in the control group of these folders, or on these cores."""

    folders: Sequence[str] = ()
    cores: Sequence[int] = ()

    def move_current_process(self) -> None:
        """Move the calling process here; with cores, the calling thread and threads that it starts later."""
        for folder in self.folders:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
        if self.cores:
            os.sched_setaffinity(0, self.cores)


class Process:
    """A worker or a competitor: a process that reads its task from its standard input.

    It ends when that input is closed, so it never outlives the process that started it. The last part of the module's
    name is its role; ``folder`` gets the log of its output.
    """

    def __init__(self, module_name: str, number: int, folder: Path, task: Mapping[str, object]) -> None:
        role = module_name.rpartition(".")[2]
        self.title = f"{role} {number}"
        self.log = folder / f"{role}{number}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module_name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches only the parent, which then ends its processes in order
            )
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # one that has already died: `status` says so
            self._popen.stdin.write(f"{json.dumps(task)}\n".encode())
            self._popen.stdin.flush()

    def status(self) -> int | None:
        """Return the exit status, 0 if the task is done; None while the process runs."""
        return self._popen.poll()

    def last_output(self) -> str:
        """Return how the process ended, and the last lines of its output."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n  ".join([f"{self.title} ended with status {self.status()}:", *lines[-15:]])

    def end(self) -> None:
        """End the process and wait for it: it may end by itself once its input is closed, and is killed otherwise."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.communicate(timeout=1.0)  # closes its input
        self._popen.kill()  # does nothing if it has ended
        self._popen.wait()


def wait_for_processes(processes: Sequence[Process], on_poll: Callable[[], object] = lambda: None) -> None:
    """Wait until all processes have done their tasks; raise ``RuntimeError`` with the last output if any fails."""
    while not all(process.status() == 0 for process in processes):
        # All of them: when one worker dies, the others fail as well, and the cause may be in any.
        if failed := [process.last_output() for process in processes if process.status() not in (None, 0)]:
            raise RuntimeError("\n".join(failed))
        on_poll()
        time.sleep(0.1)


@contextmanager
def quota_placement(quota: float, root: str | Path = "/") -> Iterator[CPUPlacement | None]:
    """Make a control group with a quota for a worker and its competitors; None where this machine lets us make none.

    ``quota`` are the cores that they may use together, and ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    mounts = find_mounts(root)
    _remove_stale(mounts, Path(root))
    period = 5000  # microseconds: much shorter than an iteration, so that each spans many periods
    settings: dict[str, object] = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": round(quota * period)}
    # Version 2 find_mounts beside version 1 has no quotas, but it reports the pressure of each group.
    name = f"paceline-{os.getpid()}-0"
    folders = list(dict.fromkeys(mounts[kind] / name for kind in ("cpu", "cpuacct", "") if kind in mounts))
    with ExitStack() as made:
        place: CPUPlacement | None = None
        with suppress(OSError):
            if "cpu" not in mounts and "" in mounts:
                (mounts[""] / "cgroup.subtree_control").write_text("+cpu")
                settings = {"cpu.max": f"{round(quota * period)} {period}"}
            for folder in folders:
                folder.mkdir()
                made.callback(_remove, folder)
            for setting, value in settings.items() if folders else ():
                (folders[0] / setting).write_text(str(value))
            place = CPUPlacement(folders=[str(folder) for folder in folders]) if folders else None
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
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.02)
    return folder.rmdir()


def die_with_parent() -> None:
    """End this process as soon as its standard input is closed.

    The parent holds that input open, and the kernel closes it even if the parent is killed.
    """
    closed = select.poll()
    closed.register(sys.stdin, select.POLLHUP)
    if closed.poll(0):  # the parent may have been killed already, and C++ code may block the thread
        os._exit(1)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
