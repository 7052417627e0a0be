"""All that CUDA devices are asked, in one command: each part in a process of its own, with a limit of time.

Run as ``python benchmarks/gpu.py`` (``make gpu``). Where a device is, it writes gpu.md and gpu_curves.csv beside this
file. Where none is, the same code runs on a stand-in for streams and events, and what it could not run is said at the
end. ``--part NAME`` runs one part alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "gpu_parts"
sys.path.insert(0, str(FOLDER))

PARTS = {
    "loop_verdicts": 150,
    "event_clocks": 60,
    "step_curves": 90,
    "added_time": 60,
    "size_changes": 75,
    "shared_card": 100,
    "device_fits": 60,
}
"""The parts and the seconds that each may take: together less than ten minutes."""

Found = dict[str, Any]


def run(part: str, seconds: float) -> Found:
    """Run a part in a process of its own; return what it found, or how it failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        log = Path(folder) / "log"
        status = _status([sys.executable, str(FOLDER / f"{part}.py"), str(out)], log, seconds)
        found: Found = json.loads(out.read_text()) if out.exists() else {"part": part, "tables": []}
        if status != "0":
            lines = log.read_text(errors="replace").splitlines()
            words = f"ended with {status}" if status != "late" else f"was not done after {seconds:g} s"
            found.setdefault("failed", []).append("\n  ".join([f"{part} {words}:", *lines[-12:]]))
    found["seconds"] = time.monotonic() - began
    return found


def _status(command: list[str], log: Path, seconds: float) -> str:
    """Return the exit status of a command, ``"late"`` if it had to be ended; its children are ended with it."""
    paths = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            return str(process.wait(seconds))
        except subprocess.TimeoutExpired:
            return "late"
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    import signal
    from contextlib import suppress

    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    chosen = parser.parse_args().part or list(PARTS)
    from gpu_page import page, report

    found = []
    for part in chosen:
        found.append(run(part, PARTS[part]))
        print(report(found[-1]), flush=True)
    left = [sentence for one in found for sentence in one.get("left_out", [])]
    failed = [one["part"] for one in found if one.get("failed")]
    real = [one for one in found if one.get("device", {}).get("real")]
    if real and chosen == list(PARTS):
        (HERE / "gpu.md").write_text(page(found))
        print("written: gpu.md")
    if not real:
        print("There is no CUDA device here, so a stand-in ran and nothing was measured. " + " ".join(left))
    if failed:
        print("failed: " + ", ".join(failed))
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
