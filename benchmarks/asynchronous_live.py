"""Does the replay tell the truth? The same schemes trained live, by three processes, beside the replay of them.

Run as ``python benchmarks/asynchronous_live.py``; it writes asynchronous_live.md beside this file. Axis: W workers.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from machine import machine

from paceline.coordinator.asynchronous import scheme
from paceline.eval.replay.asynchronous import Course, Times, race, task
from paceline.parameter_server import AsyncJob

SECONDS_W = np.array([0.001, 0.002, 0.004])
"""How long each worker sleeps over a sample: its speed does not depend on what else runs on the machine."""

BATCH, EPOCHS, RATE = 16, 2, 0.05
SCHEMES = ("saps", "asp", "dc-asgd-a", "lb-bsp", "ssp", "dssp", "bsp")


def live_rank(rank: int, store: str, answer: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(SECONDS_W))
    for name in SCHEMES:
        found = trained(rank, name)
        if rank == 0:
            answer.put(found)
    dist.destroy_process_group()


def trained(rank: int, name: str) -> tuple[float, float, int, float]:
    """Train once, and return seconds, accuracy, largest staleness and what was wasted, known on rank 0."""
    digits = task("digits-logistic")
    model = torch.nn.Linear(digits.inputs.shape[1], 10, bias=False)  # the last input is 1
    dataset = torch.utils.data.TensorDataset(torch.tensor(digits.inputs), torch.tensor(digits.labels))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    job = AsyncJob(model, optimizer, dataset, batch=BATCH, epochs=EPOCHS, scheme=name)
    dist.barrier()
    began = time.monotonic()
    for inputs, targets in job:
        start = time.monotonic()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        time.sleep(max(SECONDS_W[rank] * len(inputs) - (time.monotonic() - start), 0.0))
        job.push()
    took = time.monotonic() - began
    with torch.no_grad():
        told = model(torch.tensor(digits.held_inputs)).argmax(1).numpy()
    dist.barrier()
    if job.service is None:
        return took, 0.0, 0, 0.0
    ledger = job.service.server.ledger
    return took, float((told == digits.held_labels).mean()), ledger.largest_staleness, ledger.wasted_share


def live() -> dict[str, tuple[float, float, int, float]]:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=live_rank, args=(rank, f"{folder}/store", answer), daemon=True)
            for rank in range(len(SECONDS_W))
        ]
        for rank in ranks:
            rank.start()
        found = {name: answer.get(timeout=180) for name in SCHEMES}
        for rank in ranks:
            rank.join(30)
            rank.kill()
    return found


def report() -> str:
    times = Times(1 / SECONDS_W[None], span=1000.0, comm_seconds=0.0)
    course = Course(batch=BATCH, rate=RATE, epochs=EPOCHS)
    rows, measured = [], live()
    for name in SCHEMES:
        replayed = race(task("digits-logistic"), times, scheme(name, len(SECONDS_W)), course)
        took, right, staleness, wasted = measured[name]
        simulated = float(replayed.seconds[-1])
        rows.append((simulated, took, replayed, right, staleness, wasted, name))
    order = [row[-1] for row in sorted(rows)], [row[-1] for row in sorted(rows, key=lambda row: row[1])]
    lines = [
        f"| `{name}` | {simulated:.1f} | {took:.1f} | {took / simulated:.2f} | {replayed.final:.1%} | {right:.1%} | "
        f"{replayed.server.ledger.largest_staleness} | {staleness} | {wasted:.1%} |"
        for simulated, took, replayed, right, staleness, wasted, name in rows
    ]
    return PAGE.format(
        machine=machine("torch"), rows="\n".join(lines), replayed=", ".join(order[0]), live=", ".join(order[1])
    )


PAGE = """# The replay beside live training

Command: `python benchmarks/asynchronous_live.py`
Machine: {machine}; one thread a process; other work ran on it.

Three processes under gloo train logistic regression on scikit-learn's digits for two epochs, once for each scheme.
Each sleeps 1, 2 or 4 ms over a sample, so that speeds are those that the replay is told; messages, and whatever else
runs on the machine, come on top of it live and are left out in the replay.

| scheme | seconds, replay | live | ratio | accuracy, replay | live | largest staleness, replay | live | wasted |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

From the fastest to the slowest: replayed {replayed}; live {live}.
"""


if __name__ == "__main__":
    text = report()
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)
