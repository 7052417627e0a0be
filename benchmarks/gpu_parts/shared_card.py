"""``paceline live`` with two ranks on one card, one of them disturbed by kernels: equal batches, EWMA, Auto, oracle."""

from __future__ import annotations

import sys
from pathlib import Path

from place import Found, Place, run

from paceline.lab.experiment import ExperimentOutcome, Setting, conduct, experiment

FAR = 0.05
"""Largest difference of the losses of two schemes, relative to the first; autocast rounds more coarsely."""

FEWEST = 12
"""Iterations of a turn below which the stand-in has no table: a device lags, so not each of them is known."""


def outcome(place: Place, precision: str, schemes: tuple[str, ...]) -> ExperimentOutcome:
    """Train for real, in turns."""
    short = {"rounds": 1, "seconds": 2.0, "global_batch": 64, "model": "digits-mlp"}
    turns = {"rounds": 3, "seconds": 1.5, "global_batch": 896} if place.real else short
    setting = Setting(contention="kernels", schemes=schemes, device=place.device, precision=precision, **turns)
    conduct.WORKER = "shared_rank"
    sys.path.insert(0, str(Path(__file__).parent))
    return experiment(setting)


def part(place: Place, found: Found) -> None:
    """Compare the schemes in single precision, and Auto under autocast."""
    heading = ["precision", "scheme", "speed-up over equal batches", "oracle", "waiting"]
    rows = [[*heading, "changes in 100 iterations", "losses apart"]]
    for precision, schemes in {"single": ("ewma", "auto"), "mixed": ("auto",)}.items():
        seen = outcome(place, precision, schemes)
        if not place.real and min(len(turn.seconds) for turn in seen.turns) < FEWEST:
            found.left_out.append(f"The table of {precision} precision: this machine is too busy for turns so short.")
            continue
        for row in seen.rows:
            cells = [f"{row.speed_up:.2f} +- {row.half_width:.2f}", f"{row.oracle:.2f}", f"{row.waiting:.0%}"]
            rows.append([precision, row.scheme, *cells, f"{row.changes:.1f}", f"{row.loss_gap:.3f}"])
            found.require(row.loss_gap < FAR, f"{row.scheme} ({precision}) learns another model: {row.loss_gap}")
    found.tables.append(rows)
    if not place.real:
        found.left_out.append("How two ranks share a card, and what a disturbance of one of them does to the other.")


if __name__ == "__main__":
    run(part)
