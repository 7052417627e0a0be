"""The page benchmarks/gpu.md, and the lines that are printed of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADINGS = {
    "loop_verdicts": "Loops, with the verdicts of docs/reference/loops.md",
    "event_clocks": "Event clocks against a busy loop of known length",
    "step_curves": "Batch time curves up to the limit of memory",
    "added_time": "Added time beside a step",
    "size_changes": "The price of a new batch size",
    "shared_card": "Two ranks on one card, one of them disturbed",
    "device_fits": "Networks fitted on the device and on the CPU",
}

PAGE = """# On a CUDA device

{device}, torch {torch} for CUDA {cuda}, {driver}, commit {commit}. Written by `python benchmarks/gpu.py` (`make gpu`),
each part in a process of its own.

{parts}
"""


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the page about what the parts found."""
    device = next(one["device"] for one in found if one.get("device"))
    parts = [f"## {HEADINGS[one['part']]}\n\n{_told(one)}" for one in found]
    facts = {key: device[key] for key in ("torch", "cuda", "driver", "commit")}
    return PAGE.format(device=device["name"], parts="\n\n".join(parts), **facts)


def report(one: Mapping[str, Any]) -> str:
    """Return what is printed of a part."""
    state = "FAILED" if one.get("failed") else "passed"
    return f"{one['part']}: {state} in {one['seconds']:.0f} s\n\n{_told(one)}\n"


def _told(one: Mapping[str, Any]) -> str:
    blocks = [*map(_table, one.get("tables", [])), *one.get("said", [])]
    blocks += [f"Failed: {sentence}" for sentence in one.get("failed", [])]
    return "\n\n".join([*blocks, *one.get("left_out", [])])


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]])
