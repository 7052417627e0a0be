"""Record a command such as ``torchrun train.py``: every worker of it records itself."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from paceline import _version
from paceline.datasets.trace import Trace
from paceline.recording.launch import PROBE, startup_folder
from paceline.recording.merging import merge_what_is_sound


def machine() -> dict[str, str]:
    """Return processor, cores, kernel, versions and today's date.

    >>> sorted(machine())
    ['cores', 'cpu', 'date', 'kernel', 'python', 'torch']
    """
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


@dataclass(frozen=True)
class Recorded:
    """Result of a recorded command: exit status, the workers' files, the merged trace, and warnings about gaps."""

    status: int
    files: Sequence[Path]
    trace: Trace | None
    missing: Sequence[str] = ()


def record_command(command: Sequence[str], path: str | Path, *, probe_steps: int = 0) -> Recorded:
    """Run a command whose processes train together, and record every iteration of each.

    Neither the command nor its scripts are changed: a hook in Python's start-up records the first model that trains in
    each process that has a ``RANK``. The files ``rank<r>.jsonl`` stay in a folder named after the trace. They are
    merged into the trace even if the command fails or is interrupted; files and rows that are broken are left out and
    named.

    Parameters
    ----------
    command
        The command and its arguments, such as ``["torchrun", "--nproc-per-node", "4", "train.py"]``.
    path
        The trace file to write.
    probe_steps
        If not 0, every other block of batches is cut to half, and the workers exit after so many steps: this shows how
        much of a step does not depend on the batch.

    Returns
    -------
    Recorded
        Its trace is ``None`` if nothing was recorded.

    Raises
    ------
    FileExistsError
        If the trace, or a folder with records of it, exists.
    FileNotFoundError
        If there is no such command.
    """
    path = Path(path)
    folder = path.with_suffix("")
    for existing in (path, folder):
        if existing.is_file() or (existing.is_dir() and any(existing.iterdir())):
            raise FileExistsError(f"{existing} exists, and a recording is never overwritten: choose a new name")
    folder.mkdir(parents=True, exist_ok=True)
    status = _run(command, folder, probe_steps)
    files = _last_attempts(folder)
    if not files:
        with suppress(OSError):  # not empty
            folder.rmdir()  # so that the next try is not refused
        return Recorded(status, [], None)
    trace, missing = merge_what_is_sound(files)
    if trace is None:
        return Recorded(status, files, None, missing)
    meta = {"job": path.stem, "source": "recorded by paceline record", "command": " ".join(command), **machine()}
    trace = replace(trace, meta={**trace.meta, **meta, "status": str(status)})
    trace.save(path)
    return Recorded(status, files, trace, missing)


def _run(command: Sequence[str], folder: Path, probe_steps: int) -> int:
    startup = str(startup_folder())
    environment = {
        "PACELINE_RECORD": str(folder.resolve()),
        "PACELINE_HOME": str(Path(_version.__file__).parent.parent),
        PROBE: str(probe_steps or ""),
        "PYTHONPATH": os.pathsep.join(filter(None, [startup, os.environ.get("PYTHONPATH")])),
    }
    with subprocess.Popen(command, env=os.environ | environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return _terminate(process)


def _terminate(process: subprocess.Popen[bytes]) -> int:
    # The terminal sends Ctrl-C to the command too, but a signal to this process alone does not reach it.
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _last_attempts(folder: Path) -> list[Path]:
    # torchrun restarts all workers together. Of each rank, the last attempt that recorded an iteration counts.
    chosen: dict[int, tuple[int, Path]] = {}
    for file in folder.glob("rank*.jsonl"):
        rank, _, attempt = file.stem.removeprefix("rank").partition(".")
        with file.open("rb") as lines:
            empty = sum(1 for _ in zip(lines, range(2), strict=False)) < 2
        if not empty:
            chosen[int(rank)] = max(chosen.get(int(rank), (-1, file)), (int(attempt or 0), file))
    return [file for _, (_, file) in sorted(chosen.items())]
