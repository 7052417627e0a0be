"""Pictures of runs in a terminal, with their colours, as they were looked at and kept in ``pictures/``."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept_text
from rich.console import Console

from paceline.cli.watching.async_view import async_view
from paceline.cli.watching.view import view
from paceline.runs.async_run import AsyncRun
from paceline.runs.json_rounds import OF_FLEET as OF_ROUNDS
from paceline.runs.run import DRIFT, OF_FLEET, OF_WORKERS, WORK, Run

RECORDED = Path(__file__).parent / "pictures"


def run(workers=3, length=70, work=False):
    """A run of workers whose speeds differ; numbers are of no round kind, so that each digit counts."""
    chance = np.random.default_rng([workers, length])
    sizes = np.repeat(chance.integers(20, 90, (1, workers)), length, axis=0).astype(float)
    seconds = sizes * chance.uniform(0.001, 0.004, workers) * chance.uniform(0.9, 1.2, (length, workers))
    rows = dict.fromkeys(OF_WORKERS, sizes) | {"seconds": seconds, "forecast_seconds": seconds[::-1] * 1.07}
    rows[WORK] = sizes * chance.uniform(0.5, 2.0, (length, workers)) if work else np.full(sizes.shape, np.nan)
    top = seconds.max(axis=1)
    fleet = dict.fromkeys((*OF_FLEET, DRIFT), np.zeros(length))
    fleet |= {"index": 3.0 * np.arange(length), "time": 1.7e9 + np.cumsum(top), DRIFT: np.full(length, np.nan)}
    fleet |= {"wall_seconds": top * 1.1, "equal_seconds": top * chance.uniform(1.1, 1.6, length)}
    acted = chance.random(length) < 0.15
    why = tuple(f"Reason {t}." for t in range(length))
    names = tuple(f"gpu{w}" for w in range(workers))
    return Run("/jobs/monday/run.jsonl", names, rows, fleet, np.ones(length, dtype=bool), acted, why)


def alarmed():
    """A run in which everything goes wrong."""
    found = run(workers=15)
    rows = {name: values.copy() for name, values in found.of_workers.items()}
    for worker, silent in ((3, 4), (7, 9), (8, 1), (12, 2)):
        rows["seconds"][-silent:, worker] = np.nan
    rows["sizes"][-1, 5] = np.nan  # gone
    fleet = {name: values.copy() for name, values in found.of_fleet.items()}
    fleet[DRIFT][-1] = 0.4
    fleet["equal_seconds"] *= 0.7
    fleet["wall_seconds"][20] = 9.0
    agreed = found.agreed.copy()
    agreed[[4, 9]] = False
    return replace(found, of_workers=rows, of_fleet=fleet, agreed=agreed, skipped=2, lost=1)


def rounds(workers=3, length=30, bound=None, stale=False):
    """An asynchronous run."""
    chance = np.random.default_rng([workers, length, 1])
    shape = (length, workers)
    rows = {name: chance.integers(1, 90, shape).astype(float) for name in ("sizes", "pushes")}
    rows |= {name: chance.uniform(0, 5, shape) for name in ("staleness", "expected")}
    rows |= {name: np.cumsum(chance.uniform(0, 50, shape), axis=0) for name in ("done", "wasted", "waited")}
    fleet = {name: np.cumsum(chance.uniform(1, 300, length)) for name in OF_ROUNDS}
    fleet |= {"index": np.arange(length) * 2.0, "time": 1.7e9 + np.cumsum(chance.uniform(1, 2, length))}
    fleet |= {name: chance.uniform(0, 1, length) for name in ("wasted_share", "covered")}
    fleet |= {name: np.zeros(length) for name in ("refused",)} if not stale else {}
    if not stale:
        fleet["forecast"] = np.full(length, np.nan)
    names = tuple(f"rank{w}" for w in range(workers))
    late = tuple((names[t % workers],) if t % 3 else () for t in range(length))
    acted = tuple((chance.random(length) < 0.3).tolist())
    found = AsyncRun(
        "run.jsonl", "SaPS", bound, 64, names, rows, fleet, late, acted, tuple(f"Because {t}." for t in range(length))
    )
    if stale:
        rows["sizes"][-1, 1] = np.nan
        rows["done"][:, 2] = np.nan
        rows["staleness"][:, 0] = np.nan
        rows["expected"][-1, 3] = np.nan
        found = replace(found, skipped=1, lost=3)
    return found


PICTURES = {
    "quiet": lambda: view(run(), done=70),
    "work": lambda: view(run(work=True, workers=4), done=1, silent=0.01),
    "alarmed": lambda: view(alarmed(), done=1234, silent=77.0),
    "short": lambda: view(run(workers=1, length=1), done=1),
    "rounds": lambda: async_view(rounds(), done=30),
    "alarmed-rounds": lambda: async_view(rounds(workers=14, bound=6, stale=True), done=1, silent=100.0),
    "one-round": lambda: async_view(rounds(workers=2, length=1), done=1, silent=3.5),
}


def drawn(name):
    console = Console(
        width=100, record=True, force_terminal=True, color_system="standard", file=io.StringIO(), _environ={}
    )
    console.print(PICTURES[name]())
    return console.export_text(styles=True)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_it_was_looked_at(name):
    require_kept_text(RECORDED / f"{name}.txt", drawn(name))
