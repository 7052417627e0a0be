"""The table of loop shapes on a device that two processes share: the same verdicts as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from place import ROOT, Found, Place, run

LOOPS = ROOT / "tests" / "loops"
sys.path.insert(0, str(LOOPS))

import shapes  # noqa: E402, F401 (registers them)
from verdicts import SHAPES, Shape  # noqa: E402

EACH = 24
"""One of so many shapes runs on the stand-in."""

BEYOND = ("compiled", "shards its state")
"""Words of loops whose libraries look for a real device where the stand-in says that there is one."""

TOLERANCE = 1e-9
"""Relative deviation of what counts as exact: kernels of a device sum in another order for every size."""

LONGEST = 140


def outcomes(backend: str, names: list[str], folder: Path) -> dict[str, Any]:
    """Run shapes on two ranks; return what became of those that were done in time."""
    out = folder / f"{backend}.json"
    environment = {**os.environ, "PACELINE_LOOPS_DEVICE": "cuda", "PACELINE_LOOPS_BACKEND": backend}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(Path(__file__).with_name("loop_rank.py")), str(out), *names]
    try:
        subprocess.run(
            command,
            env={**environment, "GLOO_SOCKET_IFNAME": "lo"},
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{backend}: not all were done after {LONGEST} s", file=sys.stderr)
    return json.loads(out.read_text()) if out.exists() else {}


def differs(shape: Shape, outcome: Mapping[str, Any]) -> str:
    """Return how an outcome differs from the verdict on the CPU; nothing if it does not."""
    if shape.verdict == "refused":
        return "" if all(shape.says in error for error in outcome["errors"]) else f"not refused: {outcome['errors']}"
    if any(outcome["errors"]):
        return f"ended with {next(error for error in outcome['errors'] if error)[:300]}"
    off = outcome["deviation"]
    if shape.verdict.startswith("exact") and (off is None or not off < TOLERANCE):
        return f"off by {off}"
    if shape.says:
        return "" if any(shape.says in sentence for sentence in outcome["warned"]) else "not warned"
    return f"warned: {outcome['warned']}" if outcome["warned"] else ""


def part(place: Place, found: Found) -> None:
    """Run the table with gloo on one device, and with NCCL where there are two."""
    import torch

    chosen = [shape for shape in SHAPES if 2 in shape.ranks]
    if not place.real:
        chosen = [shape for shape in chosen[::EACH] if not any(word in shape.name for word in BEYOND)]
    names = [shape.run.__name__ for shape in chosen]
    rows = [["backend", "loops", "as on the CPU", "other", "not done"]]
    backends = ["gloo", "nccl"] if place.real and torch.cuda.device_count() > 1 else ["gloo"]
    with tempfile.TemporaryDirectory() as folder:
        for backend in backends:
            seen = outcomes(backend, names, Path(folder))
            found.require(bool(seen), f"no loop was done with {backend}")
            other = {
                shape.name: differs(shape, seen[shape.run.__name__]) for shape in chosen if shape.run.__name__ in seen
            }
            count = Counter(bool(how) for how in other.values())
            cells = (len(chosen), count[False], count[True], len(chosen) - len(seen))
            rows.append([backend, *map(str, cells)])
            for name, how in other.items():
                found.require(not how, f"{backend}, {name}: {how}")
            found.require(len(seen) == len(chosen), f"{backend}: {len(chosen) - len(seen)} loops were not done")
    found.tables.append(rows)
    if not place.real:
        found.left_out.append(f"{len(SHAPES) - len(chosen)} of {len(SHAPES)} loops.")
    if "nccl" not in backends:
        found.left_out.append("NCCL, which needs two devices.")


if __name__ == "__main__":
    run(part)
