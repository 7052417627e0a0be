"""Two ranks whose samples cost .3 and .6 ms, in ``__getitem__``, the loop or the forward pass: equal or attached."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from item_rank import COST, GLOBAL, STEPS
from place import Found, Place, run, torchrun

MOST = 0.97
"""Share of the time of equal batches that an attached job may take; two thirds would be the best."""


def part(place: Place, found: Found) -> None:
    """Time each job, equal and attached."""
    rows = [["the cost lies in", "equal batches, s", "attached, s", "best possible, s", "sizes at the end"]]
    best = STEPS * GLOBAL / sum(1 / cost for cost in COST)
    places = ("item", "loop", "forward") if place.real else ("item",)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        script = Path(__file__).with_name("item_rank.py")
        failed = torchrun(script, str(out), *places, real=place.real, seconds=90)
        seen = json.loads(out.read_text()) if out.exists() else []
    found.require(not failed, failed)
    for equal, attached in zip(seen[::2], seen[1::2], strict=False):
        times = [f"{seconds:.2f}" for seconds in (equal["seconds"], attached["seconds"], best)]
        rows.append([equal["where"], *times, " + ".join(map(str, attached["sizes"]))])
        if place.real:
            slower = f"{equal['where']}: attached {times[1]} s, equal batches {times[0]} s"
            found.require(attached["seconds"] < MOST * equal["seconds"], slower)
    found.tables.append(rows)


if __name__ == "__main__":
    run(part)
