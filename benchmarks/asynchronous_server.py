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
from dataclasses import dataclass, field
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from machine import machine

from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
from paceline.parameter_server.links import SERVER, GlooLink, serve
from paceline.parameter_server.service import Service
from paceline.parameter_server.torch_optimizer import FRONT
from paceline.predictors import EWMA

SIZES = (1_000_000, 10_000_000)
ROUNDS, STEPS = 12, {1_000_000: 30, 10_000_000: 8}
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
        EpochSampler(10**6),
        batch=32,
        workers=FLEET,
        predictor=EWMA(),
        copy=False,
    )
    return Service(server)


@dataclass
class Taken:
    """Seconds of a pull and a push, turn by turn: of the bare loop, and of ours."""

    wall: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    cpu: list[list[float]] = field(default_factory=lambda: [[], []])

    def over(self, steps: int) -> Taken:
        """Return the seconds of one step of turns of so many."""
        bare, ours = ([one / steps for one in turns] for turns in self.wall)
        return Taken((bare, ours), [[one / steps for one in turns] for turns in self.cpu])


# -- in one process --------------------------------------------------------------------------------------------------


def in_process(numbers: int, name: str) -> Taken:
    """Time a pull and a push in one process: a copy and a step of SGD alone, and the server."""
    gradient, bare_P = np.full(numbers, 1e-6, dtype=np.float32), np.zeros(numbers, dtype=np.float32)
    service, optimizer = service_of(numbers, name), SGD(RATE)
    rows = np.empty_like(bare_P), np.empty_like(bare_P)

    def bare() -> None:
        np.copyto(rows[0], bare_P)
        optimizer.step(bare_P, gradient, 1.0, 0)

    def ours() -> None:
        work = service.pull("rank1", into=rows[1])
        service.push("rank1", work.stamp, gradient, seconds=0.01)

    return by_turns((bare, ours), STEPS[numbers])


def by_turns(loops: tuple[Callable[[], None], Callable[[], None]], steps: int) -> Taken:
    """Time both loops in pairs of turns; who is first changes from pair to pair."""
    taken = Taken()
    for turn in range(ROUNDS + 1):
        for which in order_of(turn):
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                loops[which]()
            if turn:  # the first warms up
                taken.wall[which].append((time.perf_counter() - wall) / steps)
                taken.cpu[which].append((time.process_time() - cpu) / steps)
    return taken


def order_of(turn: int) -> tuple[int, int]:
    return (0, 1) if turn % 2 else (1, 0)


# -- over gloo -------------------------------------------------------------------------------------------------------


def gloo_rank(rank: int, numbers: int, name: str, store: str, answer: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = dist.new_group([0, 1], backend="gloo")
    steps, service, optimizer = STEPS[numbers], service_of(numbers, name), SGD(RATE)
    down, up = torch.zeros(FRONT + numbers), torch.full((FRONT + numbers,), 1e-6)
    row, gradient = down[FRONT:], up[FRONT:]
    link = GlooLink(group, down, up)

    def bare_server() -> None:
        for _ in range(steps):
            dist.send(row, 1, group=group)
            dist.recv(gradient, 1, group=group)
            optimizer.step(row.numpy(), gradient.numpy(), 1.0, 0)
        dist.send(row, 1, group=group)  # as ours, which answers the last push too

    def our_server() -> None:
        serve(service, "rank1", 1, group, numbers)
        service.join("rank1")

    def bare_worker() -> None:
        for _ in range(steps):
            dist.recv(row, SERVER, group=group)
            dist.send(gradient, SERVER, group=group)
        dist.recv(row, SERVER, group=group)

    def our_worker() -> None:
        for _ in range(steps):
            work = link.pull()
            link.push(work.stamp, gradient, len(work.assigned), 0.01, 0.0)
        link.leave()  # takes the answer to the last push

    loops = (bare_server, our_server) if rank == SERVER else (bare_worker, our_worker)
    taken = by_turns(loops, 1)
    answer.put((rank, taken))
    dist.barrier()
    dist.destroy_process_group()


def over_gloo(numbers: int, name: str) -> Taken:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=gloo_rank, args=(rank, numbers, name, store, answer), daemon=True) for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        told = dict(answer.get(timeout=300) for _ in ranks)
        for rank in ranks:
            rank.join(30)
            rank.kill()
    both = Taken(wall=told[1].wall)  # the worker's clock; the CPU time of both processes
    for which in (0, 1):
        both.cpu[which] = [a + b for a, b in zip(told[0].cpu[which], told[1].cpu[which], strict=True)]
    return both.over(STEPS[numbers])


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


def on_ray(numbers: int, name: str) -> Taken:
    import ray

    from paceline.integrations.ray import RayPlan, RayServer
    from paceline.parameter_server.service import Work

    if not ray.is_initialized():
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": path})
    parameters, gradient = np.zeros(numbers, dtype=np.float32), np.full(numbers, 1e-6, dtype=np.float32)
    plan = RayPlan(
        parameters=parameters,
        optimizer=SGD(RATE),
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
        note = Work(work.stamp, work.parameters[:0], work.assigned, 0.0)
        ray.get(server.push.remote("rank1", note, gradient, 0.01, 0.0))

    taken = by_turns((bare, ours), STEPS[numbers])
    taken.cpu = [[], []]  # that of the actors' processes is not known here
    for actor in (theirs, server):
        ray.kill(actor)
    return taken


ABOUT = f"""\
A pull and a push of all parameters by one worker, with SGD. Bare: the same engine's minimal loop. The server
sends the parameters, receives the gradient and takes the same step of the same optimizer, and looks at nothing; on Ray
its step makes new parameters, as an actor may not change what it has handed out. Ours, besides: heads with stamps, a
copy of the parameters for the wire (they may change while they are sent, which the bare loop does not guard against),
the search for NaN, locks, staleness, samples and forecasts. Target: at least 80 % of the bare loop's pulls and pushes
per second.

Both loops run in turns, {ROUNDS} pairs, and who is first changes. The share is the median of the pairs' ratios, with
their middle half in brackets; milliseconds are medians of wall time. Beside it the same share in CPU time of both
processes. In one process no target is set, as there is no wire. The fleet has 8 workers, one of which pushes.
"""

ENGINES = {
    "none: a copy and a step in one process": in_process,
    "torch, gloo, two processes": over_gloo,
    "Ray, two processes": on_ray,
}


def lines() -> Iterator[str]:
    yield "# What the asynchronous server costs\n"
    yield "Command: `python benchmarks/asynchronous_server.py`\n"
    yield f"Machine: {machine('torch', 'ray')}; one thread; other work ran on it, which moves all of these times.\n"
    yield ABOUT
    yield "| engine | parameters | scheme | bare, ms | ours, ms | of the bare throughput | by CPU time | target |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for engine, measured in ENGINES.items():
        for numbers in SIZES[:1] if QUICK else SIZES:
            for name in ("saps",) if QUICK else ("saps", "asp"):
                taken = measured(numbers, name)
                low, share, high = quarters(*taken.wall)
                cpu = f"{quarters(*taken.cpu)[1]:.0%}" if taken.cpu[0] else "-"
                # Without an engine there is no wire that the rules could be compared with: no target is set for it.
                verdict = "-" if measured is in_process else "met" if share >= 0.8 else "missed"
                bare, ours = (1e3 * statistics.median(turns) for turns in taken.wall)
                yield (
                    f"| {engine} | {numbers:,} | `{name}` | {bare:.2f} | {ours:.2f} | "
                    f"{share:.0%} ({low:.0%} to {high:.0%}) | {cpu} | {verdict} |"
                )


def quarters(bare: list[float], ours: list[float]) -> list[float]:
    """Return the quartiles of the ratios of turns side by side."""
    return statistics.quantiles([b / o for b, o in zip(bare, ours, strict=True)], n=4)


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
