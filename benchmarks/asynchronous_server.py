"""What the asynchronous server costs: pull and push per second, beside the same engine without its rules.

Run as ``python benchmarks/asynchronous_server.py``; it writes asynchronous_server.md beside this file. ``--quick``
prints one size. Both loops run over the same two processes and link, in turns. Axis: P parameters.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from machine import machine

from paceline.coordinator.asynchronous import SGD, Deck, Server, scheme
from paceline.coordinator.asynchronous.service import Service
from paceline.coordinator.asynchronous.torch.links import SERVER, GlooLink, serve
from paceline.predictors import EWMA

SIZES = (1_000_000, 10_000_000)
ROUNDS, STEPS = 20, {1_000_000: 10, 10_000_000: 2}
"""Turns of each loop, and pulls with a push in a turn."""

RATE = 1e-3
FLEET = [f"rank{rank}" for rank in range(8)]
"""Sizes are planned anew after as many pushes as there are workers; here one of them pushes."""

QUICK = "--quick" in sys.argv


def service_of(numbers: int, name: str) -> Service:
    parameters = np.zeros(numbers, dtype=np.float32)
    server = Server(
        parameters,
        SGD(RATE),
        scheme(name, len(FLEET)),
        Deck(10**6),
        batch=32,
        workers=FLEET,
        predictor=EWMA(),
        copy=False,
    )
    return Service(server)


# -- in one process --------------------------------------------------------------------------------------------------


def in_process(numbers: int, name: str) -> tuple[list[float], list[float]]:
    """Return seconds of a pull and a push by turns: a copy and a step of SGD alone, and the server."""
    gradient, bare_P = np.full(numbers, 1e-6, dtype=np.float32), np.zeros(numbers, dtype=np.float32)
    service, optimiser = service_of(numbers, name), SGD(RATE)

    def bare() -> None:
        bare_P.copy()
        optimiser.step(bare_P, gradient, 1.0, 0)

    def ours() -> None:
        work = service.pull("rank1")
        service.push("rank1", work.stamp, gradient, seconds=0.01)

    return by_turns(bare, ours, STEPS[numbers], clock=time.process_time)  # no other process has a part in it


def by_turns(
    bare: Callable[[], None], ours: Callable[[], None], steps: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for loop, into in zip((bare, ours), taken, strict=True):
            began = clock()
            for _ in range(steps):
                loop()
            if turn:  # the first warms up
                into.append((clock() - began) / steps)
    return taken


# -- over gloo -------------------------------------------------------------------------------------------------------


def gloo_rank(rank: int, numbers: int, name: str, store: str, answer: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = dist.new_group([0, 1], backend="gloo")
    turns, steps = ROUNDS + 1, STEPS[numbers]
    service = service_of(numbers, name)
    link, gradient = GlooLink(group, numbers), torch.full((numbers,), 1e-6)
    row = torch.zeros(numbers)
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        if rank == SERVER:
            bare_server(row, steps, group)
            serve(service, "rank1", 1, group, numbers)
            service.join("rank1")
            continue
        for loop, into in zip((bare_worker, our_worker), taken, strict=True):
            began = time.perf_counter()
            loop(link, row, gradient, steps, group)
            if turn:
                into.append((time.perf_counter() - began) / steps)
    if rank != SERVER:
        answer.put(taken)
    dist.barrier()
    dist.destroy_process_group()


def bare_server(row: torch.Tensor, steps: int, group: dist.ProcessGroup) -> None:
    gradient = torch.empty_like(row)
    for _ in range(steps):
        dist.send(row, 1, group=group)
        dist.recv(gradient, 1, group=group)
        row.add_(gradient, alpha=-RATE)


def bare_worker(
    link: GlooLink, row: torch.Tensor, gradient: torch.Tensor, steps: int, group: dist.ProcessGroup
) -> None:
    for _ in range(steps):
        dist.recv(row, SERVER, group=group)
        dist.send(gradient, SERVER, group=group)


def our_worker(link: GlooLink, row: torch.Tensor, gradient: torch.Tensor, steps: int, group: dist.ProcessGroup) -> None:
    for _ in range(steps):
        work = link.pull()
        row.numpy()[:] = work.parameters
        link.push(work.stamp, gradient, len(work.hand), 0.01, 0.0)
    link.pull()  # the answer to the last push
    link.leave()


def over_gloo(numbers: int, name: str) -> tuple[list[float], list[float]]:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=gloo_rank, args=(rank, numbers, name, store, answer), daemon=True) for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        taken: tuple[list[float], list[float]] = answer.get(timeout=300)
        for rank in ranks:
            rank.join(30)
            rank.kill()
    return taken


# -- on Ray ----------------------------------------------------------------------------------------------------------


class BareActor:
    """Ray's own minimal parameter server."""

    def __init__(self, numbers: int) -> None:
        self.row = np.zeros(numbers, dtype=np.float32)

    def pull(self) -> np.ndarray:
        """Return the parameters."""
        return self.row

    def push(self, gradient: np.ndarray) -> None:
        """Take a step."""
        self.row = self.row - RATE * gradient


def on_ray(numbers: int, name: str) -> tuple[list[float], list[float]]:
    import ray

    from paceline.coordinator.asynchronous.ray import RayPlan, RayServer
    from paceline.coordinator.asynchronous.service import Work

    if not ray.is_initialized():
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": path})
    parameters, gradient = np.zeros(numbers, dtype=np.float32), np.full(numbers, 1e-6, dtype=np.float32)
    plan = RayPlan(
        parameters=parameters,
        optimiser=SGD(RATE),
        gradient=dict,
        samples=10**6,
        batch=32,
        epochs=100,
        scheme=name,
        workers=8,
    )
    theirs, server = ray.remote(BareActor).remote(numbers), ray.remote(RayServer).remote(plan)

    def bare() -> None:
        ray.get(theirs.pull.remote())
        ray.get(theirs.push.remote(gradient))

    def ours() -> None:
        work = ray.get(server.pull.remote("rank1", 0))
        note = Work(work.stamp, work.parameters[:0], work.hand, 0.0)
        ray.get(server.push.remote("rank1", note, gradient, 0.01, 0.0))

    taken = by_turns(bare, ours, STEPS[numbers])
    for actor in (theirs, server):
        ray.kill(actor)
    return taken


ENGINES = {
    "none: a copy and a step in one process": in_process,
    "torch, gloo, two processes": over_gloo,
    "Ray, two processes": on_ray,
}


def lines() -> Iterator[str]:
    yield "# What the asynchronous server costs\n"
    yield "Command: `python benchmarks/asynchronous_server.py`\n"
    yield f"Machine: {machine('torch', 'ray')}; one thread; other work ran on it, which moves all of these times.\n"
    yield "A pull and a push of all parameters by one worker, with SGD. Bare: the same engine's minimal loop, that adds"
    yield "the gradient and looks at nothing. Target: at least 80 % of its pulls and pushes per second. The fastest of"
    yield f"{ROUNDS} turns of each loop, as other work can only slow them down; in brackets the middle half of the"
    yield "ratios of turns side by side. In one process it is CPU time, otherwise wall time. The fleet has 8 workers.\n"
    yield "| engine | parameters | scheme | bare, ms | ours, ms | of the bare throughput | target |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for engine, measured in ENGINES.items():
        for numbers in SIZES[:1] if QUICK else SIZES:
            for name in ("saps",) if QUICK else ("saps", "asp"):
                bare, ours = measured(numbers, name)
                ratios = sorted(b / o for b, o in zip(bare, ours, strict=True))
                low, _, high = statistics.quantiles(ratios, n=4)
                share = min(bare) / min(ours)
                # Without an engine there is no wire that the rules could be compared with: no target is set for it.
                verdict = "-" if measured is in_process else "met" if share >= 0.8 else "missed"
                yield (
                    f"| {engine} | {numbers:,} | `{name}` | {1e3 * min(bare):.2f} | {1e3 * min(ours):.2f} | "
                    f"{share:.0%} ({low:.0%} to {high:.0%}) | {verdict} |"
                )


def verdict_of(text: list[str]) -> str:
    """Return what to say first: how many targets are missed, and on which engines."""
    judged = [line for line in text if line.endswith(("| met |", "| missed |"))]
    missed = [line for line in judged if line.endswith("| missed |")]
    engines = ", ".join(dict.fromkeys(line.split("|")[1].strip() for line in missed))
    return f"**{len(missed)} of {len(judged)} targets are missed{': ' + engines if missed else ''}.**\n"


if __name__ == "__main__":
    text = []
    for line in lines():
        print(line, flush=True)
        text.append(line)
    text.insert(1, verdict_of(text))
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
