"""Training loops on a device that two ranks share: exact, while sizes change; and sizes that follow speed."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loop_rank import LOOPS
from place import Found, Place, run, torchrun

LONGEST = 60
"""Seconds that a loop may take."""

EXACT = 1e-9

STAND_IN = ("sizes follow speed", "plain", "a batch ahead on a stream of its own")
"""What runs where there is no card."""


def outcome(name: str, folder: Path, real: bool) -> dict[str, Any]:
    """Run a loop in processes of its own; return what became of it."""
    out = folder / f"{list(LOOPS).index(name)}.json"
    failed = torchrun(Path(__file__).with_name("loop_rank.py"), str(out), name, real=real, seconds=LONGEST)
    return {"failed": failed, **(json.loads(out.read_text()) if out.exists() else {})}


def wrong(name: str, one: dict[str, Any]) -> str:
    """Return what is wrong with an outcome; nothing if all is right."""
    if one["failed"]:
        return one["failed"]
    if not one["off"] < LOOPS[name].get("near", EXACT):
        return f"off by {one['off']:.1e}"
    if not one["every"]:
        return "not every sample was used once"
    fast, slow = one["sizes"][-1]
    if LOOPS[name].get("follow"):
        return "" if fast > 2 * slow else f"sizes ended at {fast} and {slow} where speeds are 10 : 1"
    return "" if any(first != second for first, second in one["sizes"]) else "sizes never differed"


def part(place: Place, found: Found) -> None:
    """Run the loops, several at a time; those whose sizes follow speed, one at a time before."""
    names = list(LOOPS) if place.real else list(STAND_IN)
    alone = [name for name in names if LOOPS[name].get("follow")]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(6 if place.real else 1) as pool:
        seen = {name: outcome(name, Path(folder), place.real) for name in alone}
        others = [name for name in names if name not in alone]
        seen |= zip(others, pool.map(lambda name: outcome(name, Path(folder), place.real), others), strict=True)
    rows = [["loop", "deviation from one process", "sizes of the last step", "wrong"]]
    for name, one in seen.items():
        how = wrong(name, one)
        off, sizes = (f"{one['off']:.0e}", " + ".join(map(str, one["sizes"][-1]))) if "off" in one else ("", "")
        rows.append([name, off, sizes, how])
        found.require(not how, f"{name}: {how}")
    found.tables.append(rows)
    if not place.real:
        found.left_out.append(f"{len(LOOPS) - len(names)} of {len(LOOPS)} loops, and NCCL.")


if __name__ == "__main__":
    run(part)
