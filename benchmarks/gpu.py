"""What the library does on a CUDA device, in one command: each part in a process of its own, with a time limit.

Run as ``python benchmarks/gpu.py`` (``make gpu``). On a device it takes four minutes and writes gpu.md and gpu.json
beside this file, or into ``--out``. Without one, the same code runs on a stand-in for streams and
events, and what it could not run is listed. ``--part NAME`` runs one part alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "gpu_parts"

PARTS = {
    "training_loops": (150, "Training loops under NCCL, two ranks on one card"),
    "event_clocks": (45, "Event clocks against a busy loop of known length"),
    "added_time": (45, "Time that balancing adds to a step"),
    "device_fits": (60, "Networks fitted on the device and on the CPU"),
    "recording": (60, "A job recorded without a change"),
}
"""The parts, the seconds that each may take at most, and their headings."""

PAGE = """# On a CUDA device

{name}, torch {torch} for CUDA {cuda}, {driver}, commit {commit}. Written by `python benchmarks/gpu.py` (`make gpu`) in
{seconds:.0f} s; each part runs in a process of its own.

{parts}
"""

Found = dict[str, Any]


def run(part: str, seconds: float, folder: Path) -> Found:
    """Run a part in a process of its own; return what it found, or how it failed."""
    began = time.monotonic()
    out, log = folder / f"{part}.json", folder / f"{part}.log"
    status = _status([sys.executable, str(FOLDER / f"{part}.py"), str(out)], log, seconds)
    found: Found = json.loads(out.read_text()) if out.exists() else {"part": part, "tables": []}
    if status != "0":
        lines = log.read_text(errors="replace").splitlines()
        words = f"ended with {status}" if status != "late" else f"was not done after {seconds:g} s"
        found.setdefault("failed", []).append("\n  ".join([f"{part} {words}:", *lines[-12:]]))
    return {**found, "seconds": time.monotonic() - began}


def _status(command: list[str], log: Path, seconds: float) -> str:
    """Return the exit status of a command, ``"late"`` if it had to be ended; its children are ended with it."""
    paths = [str(HERE.parent.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            return str(process.wait(seconds))
        except subprocess.TimeoutExpired:
            return "late"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the page about what the parts found."""
    device = next(one["device"] for one in found if one.get("device"))
    parts = "\n\n".join(f"## {PARTS[one['part']][1]}\n\n{_text(one)}" for one in found)
    return PAGE.format(**device, parts=parts, seconds=sum(one["seconds"] for one in found))


def _text(one: Mapping[str, Any]) -> str:
    blocks = [*map(_table, one.get("tables", [])), *one.get("said", [])]
    blocks += [f"Failed: {sentence}" for sentence in one.get("failed", [])]
    return "\n\n".join([*blocks, *one.get("left_out", [])])


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]])


def main() -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the page and its data")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.part or list(PARTS):
            found.append(run(part, PARTS[part][0], Path(folder)))
            state = "FAILED" if found[-1].get("failed") else "passed"
            print(f"{part}: {state} in {found[-1]['seconds']:.0f} s\n\n{_text(found[-1])}\n", flush=True)
            if any(one.get("device", {}).get("real") for one in found):
                _write(found, options.out)
    failed = [one["part"] for one in found if one.get("failed")]
    if not any(one.get("device", {}).get("real") for one in found):
        left = [sentence for one in found for sentence in one.get("left_out", [])]
        print("There is no CUDA device here, so a stand-in ran and nothing was measured. " + " ".join(left))
    if failed:
        print("failed: " + ", ".join(failed))
    return bool(failed)


def _write(found: Sequence[Found], out: Path) -> None:
    """Write the page and its data: after each part, so that a run cut short leaves what it found."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.md").write_text(page(found))
    (out / "gpu.json").write_text(json.dumps(list(found), indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
