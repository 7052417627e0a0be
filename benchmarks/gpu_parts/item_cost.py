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
    script = Path(__file__).with_name("item_rank.py")
    for where in ("item", "loop", "forward") if place.real else ("item",):
        took, sizes = {}, []
        for mode in ("equal", "attached"):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out.json"
                failed = torchrun(script, str(out), where, mode, real=place.real, seconds=60)
                found.require(not failed, f"{where}, {mode}: {failed}")
                one = json.loads(out.read_text()) if out.exists() else {"seconds": float("nan"), "sizes": []}
                took[mode], sizes = one["seconds"], one["sizes"]
        rows.append(
            [where, f"{took['equal']:.2f}", f"{took['attached']:.2f}", f"{best:.2f}", " + ".join(map(str, sizes))]
        )
        if place.real:
            slower = f"{where}: attached {took['attached']:.2f} s, equal batches {took['equal']:.2f} s"
            found.require(took["attached"] < MOST * took["equal"], slower)
    found.tables.append(rows)


if __name__ == "__main__":
    run(part)
