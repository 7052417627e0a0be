"""One rank of a live experiment: trains for every scheme in turn and writes down what happened.

Ranks end a turn at the same iteration without a message: the first rank notes in shared memory where it ends. The
others cannot be further than the iteration after its own, as they need its gradients.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from paceline.lab.contention.disturbance import DISTURBANCES, Bursts, Hogs, Quota, Switch
from paceline.lab.contention.kernels import Kernels
from paceline.lab.experiment.contestant import Contestant
from paceline.lab.experiment.result import IterationSeen, RankResult, TurnSeen
from paceline.lab.experiment.setting import EQUAL, Setting
from paceline.lab.processes.orphan import die_with_parent
from paceline.recording.place import Place

WARM_UP = 5
"""Iterations of every scheme before the first turn: they allocate memory and choose kernels."""
NOT_YET = 2**62


class Finish:
    """End of a turn, as an iteration in memory shared by the ranks of one machine."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    @property
    def iteration(self) -> int:
        """The first iteration that is not trained any more."""
        return int(struct.unpack("q", self._shared)[0])

    @iteration.setter
    def iteration(self, value: int) -> None:
        self._shared[:] = struct.pack("q", value)


def run(setting: Setting, rank: int, finish: Finish, bursts: Bursts | None, disturbed: bool) -> RankResult:
    """Train for every scheme in its turns, and return what this rank saw."""
    between = DISTURBANCES[setting.contention].between if disturbed else 0.0
    contestants = {scheme: Contestant(scheme, setting) for scheme in (EQUAL, *setting.schemes)}
    for contestant in contestants.values():
        for _ in range(WARM_UP):
            contestant.step()
    turns = [
        take_turn(contestants[scheme], scheme, seed, setting.seconds, rank, finish, bursts, between)
        for scheme, seed in setting.turns
    ]
    return RankResult(
        turns=turns,
        losses={scheme: [loss.item() for loss in one.losses] for scheme, one in contestants.items()},
        weights={scheme: one.weights for scheme, one in contestants.items()},
        records={scheme: [IterationSeen.of(seen) for seen in one.records] for scheme, one in contestants.items()},
    )


def take_turn(
    contestant: Contestant,
    scheme: str,
    seed: int,
    seconds: float,
    rank: int,
    finish: Finish,
    bursts: Bursts | None,
    between: float = 0.0,
) -> TurnSeen:
    """Train for so many seconds by the clock of the first rank."""
    distributed.barrier()  # all have ended the turn before
    if rank == 0:
        finish.iteration = NOT_YET
    distributed.barrier()
    first = len(contestant.losses)
    walls: list[float] = []
    machine, own = busy_seconds(), time.process_time()
    if bursts:
        bursts.start(seed)
    begin = now = time.perf_counter()
    while len(contestant.losses) < finish.iteration:
        contestant.step()
        work_for(between)
        before_step, now = now, time.perf_counter()
        walls.append(now - before_step)
        if rank == 0 and now - begin > seconds and finish.iteration == NOT_YET:
            finish.iteration = len(contestant.losses) + 1
    contestant.finish()
    walls[-1] += time.perf_counter() - now
    if bursts:
        bursts.stop()
    return TurnSeen(scheme, seed, first, walls, busy_seconds() - machine, time.process_time() - own)


def work_for(seconds: float) -> None:
    """Compute something unrelated for this many seconds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def busy_seconds() -> float:
    """Return CPU seconds of all processes of this machine so far; 0 where the system does not report them."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _io, irq, softirq, *_ = map(int, stat.read_text().split()[1:9])
    return float((user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"))


def joined() -> dict[str, Any]:
    """Read what to do from the first line of the standard input, and join the other ranks in this rank's place."""
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    die_with_parent()
    os.sched_setaffinity(0, told["cores"])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{told['folder']}/rendezvous", rank=told["rank"], world_size=told["ranks"]
    )
    if told["place"]:
        Place(**told["place"]).enter()
    return told


def main() -> None:
    """Run one rank of synchronous training."""
    told = joined()
    rank, folder, setting = told["rank"], Path(told["folder"]), Setting(**told["setting"])
    result = run(setting, rank, Finish(folder / "finish"), disturbed(told, setting), told["disturbed"])
    result.write(folder / f"result{rank}.json")
    distributed.destroy_process_group()


def disturbed(told: dict[str, Any], setting: Setting) -> Bursts | None:
    """Begin a lasting disturbance of this rank, or return the switch of a disturbance in bursts."""
    contention = DISTURBANCES[setting.contention]
    if not told["disturbed"] or not (contention.quota or contention.hogs or contention.kernels):
        return None
    switch: Switch = Hogs(told["hogs"])
    if contention.quota:
        switch = Quota(told["place"]["folders"][0], contention.quota)
    elif contention.kernels:
        switch = Kernels(setting.device)
    switch.turn(contention.bursts is None)
    return None if contention.bursts is None else Bursts(switch, contention.bursts)


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread of one of the many groups may otherwise end the process as the interpreter closes
