"""Real processes on loopback, joined by gloo, each running the same function: the ranks of a small job."""

import gc
import multiprocessing
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_context = multiprocessing.get_context("forkserver")  # a process that has loaded torch once, and forks
# torch._dynamo: any optimiser imports it, which takes two seconds
_context.set_forkserver_preload(["torch.nn.parallel", "torch.distributed.fsdp", "torch._dynamo", "paceline.torch"])


@dataclass
class Outcome:
    """What became of a rank."""

    value: object
    error: str
    exitcode: int | None
    seconds: float


def outcomes_of(world_size, work, *args, within=60):
    """Run ``work(rank, *args)`` on every rank and return what became of each; none outlives ``within`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        processes, answers, began = [], [], time.monotonic()
        for rank in range(world_size):
            answer, theirs = _context.Pipe(duplex=False)
            inside = (theirs, work, rank, world_size, str(Path(folder) / "store"), args)
            process = _context.Process(target=_rank, args=inside, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            answers.append(answer)
        return [_outcome(process, answer, began, within) for process, answer in zip(processes, answers, strict=True)]


def run_ranks(world_size, work, *args, within=60):
    """Run ``work(rank, *args)`` on every rank and return what each returned."""
    outcomes = outcomes_of(world_size, work, *args, within=within)
    for rank, outcome in enumerate(outcomes):
        assert (outcome.error, outcome.exitcode) == ("", 0), f"rank {rank}: {outcome}"
    return [outcome.value for outcome in outcomes]


def _outcome(process, answer, began, within):
    value, error = None, "ended without a word"
    try:
        if answer.poll(max(began + within - time.monotonic(), 0)):
            value, error = answer.recv()
        else:
            error = "hangs"
    except EOFError:
        pass
    process.join(max(began + within - time.monotonic(), 0.1))
    outcome = Outcome(value, error, process.exitcode, time.monotonic() - began)
    process.kill()
    process.join()
    return outcome


def _rank(answer, work, rank, world_size, store, args):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    gc.freeze()  # what the imports made stays, and need not be looked through for garbage
    try:
        join = {"rank": rank, "world_size": world_size, "timeout": timedelta(seconds=30)}
        dist.init_process_group("gloo", init_method=f"file://{store}", **join)
        value = work(rank, *args)
        answer.send((value, ""))
        dist.destroy_process_group()
    except BaseException:
        answer.send((None, traceback.format_exc()))
        raise SystemExit(1) from None
