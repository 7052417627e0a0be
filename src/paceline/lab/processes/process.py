"""The processes of a job on this machine: started with a task, watched, and always ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.1


class Process:
    """A worker or a competitor: a process that reads its task from its standard input.

    It ends when that input is closed, so it never outlives the process that started it.

    Parameters
    ----------
    module
        The module to run, as with ``python -m``; the last part of its name is the process's role.
    number
        Number among the processes of the same role.
    folder
        Folder for the log of its output.
    task
        Its task, sent as JSON in the first line of its standard input.
    """

    def __init__(self, module: str, number: int, folder: Path, task: Mapping[str, object]) -> None:
        role = module.rpartition(".")[2]
        self.title = f"{role} {number}"
        self.log = folder / f"{role}{number}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches only the parent, which then ends its processes in order
            )
        self.pid = self._popen.pid
        self.send(json.dumps(task))

    def send(self, line: str) -> None:
        """Send a line to the process; :meth:`failed` reports one that has already died."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    def ended(self) -> bool:
        """Return whether the process has ended with its task done."""
        return self._popen.poll() == 0

    def failed(self) -> bool:
        """Return whether the process has ended with an error."""
        return self._popen.poll() not in (None, 0)

    def last_output(self) -> str:
        """Return how the process ended, and the last lines of its output."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n  ".join([f"{self.title} ended with status {self._popen.poll()}:", *lines[-15:]])

    def end(self) -> None:
        """End the process and wait for it: it may end by itself once its input is closed, and is killed otherwise."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(1.0)
        self._popen.kill()  # does nothing if it has ended
        self._popen.wait()
        with suppress(BrokenPipeError):
            self._popen.__exit__(None, None, None)


def wait(processes: Sequence[Process], until: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises
    ------
    RuntimeError
        If one of the processes dies meanwhile; the message ends with its last output.
    """
    while not until():
        require_alive(processes)
        time.sleep(POLL_SECONDS)


def require_alive(processes: Sequence[Process]) -> None:
    """Raise ``RuntimeError`` with the last output of all processes that failed, if any did."""
    # All of them: when one worker dies, the others fail as well, and the cause may be in any.
    failed = [process for process in processes if process.failed()]
    if failed:
        raise RuntimeError("\n".join(process.last_output() for process in failed))
