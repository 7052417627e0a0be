"""Start a script by its own command, with an audit in each of its processes."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline._runtime import environment_with_import_hooks
from paceline.audit.run import AuditPlan, AuditRun, load_pickle

PROCESS_COUNT_OPTION = re.compile(r"(--(?:nproc[-_]per[-_]node|num[-_](?:processes|gpus)|(?:trainer\.)?devices))(=.*)?")
"""Options that set the number of processes: of torchrun, Accelerate, DeepSpeed, Fabric, and Lightning's own command."""

UNKNOWN_PROCESS_COUNT = (
    "the command does not say how many processes it starts; write their number in it: torchrun --nproc-per-node 2, "
    "accelerate launch --num_processes 2, fabric run --devices 2, or --trainer.devices 2 of a LightningCLI"
)


class Launcher:
    """Runs a command, such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``, under audit.

    Records are written to ``folder``. One run may take ``timeout`` seconds, and ``report`` is called before each with
    the name of the run.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, timeout: float, report: Callable[[str], object] = str
    ) -> None:
        self.command, self.folder, self.timeout, self.report = list(command), folder, timeout, report
        self.runs, self.longest_seconds = 0, 0.0

    def __call__(self, plan: AuditPlan, in_one_process: bool) -> AuditRun:
        command = one_process_command(self.command) if in_one_process else self.command
        if command is None:
            return AuditRun([], error=UNKNOWN_PROCESS_COUNT)
        self.runs += 1
        self.report(f"run {self.runs}" + (", as one process" if in_one_process else ""))
        folder = self.folder / str(self.runs)
        folder.mkdir()
        (folder / "plan").write_bytes(pickle.dumps(plan))
        error = self._run_command(command, folder)
        records = [load_pickle(path) for path in folder.glob("*.record")]
        return AuditRun(sorted(records, key=lambda record: record.rank), str(folder), error)

    def _run_command(self, command: list[str], folder: Path) -> str:
        """Run a command; return the error among its last words if it failed."""
        began = time.monotonic()
        hooks = {"torch": "paceline.audit.inside:install_recorder"}
        environment = environment_with_import_hooks(hooks, PACELINE_AUDIT=str(folder))
        # A later run has ten times the seconds of the longest before, and at least a minute.
        limit = min(self.timeout, max(60.0, 10 * self.longest_seconds)) if self.longest_seconds else self.timeout
        with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                return f"it took longer than {limit:.0f} seconds"
            log.seek(0)
            lines = log.read().strip().splitlines() or ["it printed nothing"]
        if status == 0:
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
            return ""
        errors = [line for line in lines if re.match(r"^(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b", line)]
        return errors[0] if errors else lines[-1][-2000:]


def one_process_command(command: Sequence[str]) -> list[str] | None:
    """Return a command that starts one process; None if it does not say how many there are.

    >>> one_process_command(["torchrun", "--nproc-per-node=4", "train.py"])
    ['torchrun', '--nproc-per-node=1', 'train.py']
    >>> one_process_command(["accelerate", "launch", "--num_processes", "2", "train.py"])
    ['accelerate', 'launch', '--num_processes', '1', 'train.py']
    >>> one_process_command(["python", "train.py", "fit", "--trainer.devices=2"])
    ['python', 'train.py', 'fit', '--trainer.devices=1']
    """
    for place, word in enumerate(command):
        if match := PROCESS_COUNT_OPTION.fullmatch(word):
            number = [f"{match[1]}=1"] if match[2] else [word, "1"]
            changed = [*command[:place], *number, *command[place + len(number) :]]
            return [word for word in changed if word != "--multi_gpu"]
    return None


def find_program(command: Sequence[str]) -> list[str]:
    """Return a command whose program was looked up, beside this Python too; raise if there is none."""
    program = shutil.which(command[0]) or shutil.which(str(Path(sys.executable).parent / command[0]))
    if program is None:
        raise FileNotFoundError(
            f"no program {command[0]!r} is on the PATH: pass the command that starts your script, such as torchrun"
        )
    return [program, *command[1:]]
