"""The processes of a job on this machine: started with a task, watched, and never left behind."""

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
LOG_LINES = 15
GRACE_SECONDS = 1.0  # a competitor may have to end processes of its own before it ends


class Process:
    """A worker or a competitor: a process that is told its task on its standard input.

    It ends when that input is closed, so it never outlives the process that started it.

    Parameters
    ----------
    module
        What to run, as ``python -m`` would; its last name is the process's role.
    number
        Tells those of one role apart.
    folder
        Where to log what it writes.
    told
        Its task: the first line of its standard input, as JSON.
    """

    def __init__(self, module: str, number: int, folder: Path, told: Mapping[str, object]) -> None:
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
                start_new_session=True,  # Ctrl-C is for the one who collects, who then ends the others
            )
        self.pid = self._popen.pid
        self.tell(json.dumps(told))

    def tell(self, line: str) -> None:
        """Send a line to the process; one that is gone already is noticed by :meth:`failed`."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    def ended(self) -> bool:
        """Whether the process has done its task."""
        return self._popen.poll() == 0

    def failed(self) -> bool:
        """Whether the process ended without having done its task."""
        return self._popen.poll() not in (None, 0)

    def last_words(self) -> str:
        """Say how the process ended, and the last lines of what it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n  ".join([f"{self.title} ended with status {self._popen.poll()}:", *lines[-LOG_LINES:]])

    def end(self) -> None:
        """End the process, if it runs, and wait until it is gone: by itself when its input is closed, else at once."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(GRACE_SECONDS)
        self._popen.kill()
        self._popen.wait()
        with suppress(BrokenPipeError):
            self._popen.__exit__(None, None, None)


def wait(processes: Sequence[Process], until: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises
    ------
    RuntimeError
        If one of the processes dies meanwhile; the sentence ends with what it said last.
    """
    while not until():
        require_alive(processes)
        time.sleep(POLL_SECONDS)


def require_alive(processes: Sequence[Process]) -> None:
    """Raise ``RuntimeError`` with the last words of those that failed, if any did."""
    # Of several that died, the first to be told of is the one with something to say: the others lost contact to it.
    failed = [process for process in processes if process.failed()]
    if failed:
        raise RuntimeError("\n".join(process.last_words() for process in failed))
