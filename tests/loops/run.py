"""Run shapes one after the other on forked ranks, and write what became of each: ``run.py RANKS OUT [NAME ...]``."""

import faulthandler
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # any optimiser imports it: once for all ranks
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

import shapes  # noqa: F401 (registers them)
from job import Job, told
from verdicts import SHAPES


def outcome_of(shape):
    """Return what became of a shape, on the first rank: the same on all."""
    gc.collect()  # models of the shape before
    gc.freeze()  # what is left is the imports': to look through it again and again takes half of all the time
    job, warned, error = told(shape.run)
    said_R = [None] * dist.get_world_size()
    facts = {
        "error": error,
        "warned": warned,
        "loops": [loader.loops for loader in job.loaders],
        "parameters": job.parameters(),
    }
    dist.all_gather_object(said_R, facts)
    outcome = {
        "errors": [said["error"] for said in said_R],
        "warned": sorted({sentence for said in said_R for sentence in said["warned"]}),
        "uneven": uneven(said_R),
    }
    if not error and dist.get_rank() == 0:
        drawn = [[said["loops"][number] for said in said_R] for number in range(len(job.loaders))]
        outcome |= deviation(
            shape, drawn, [len(loader) if hasattr(loader, "__len__") else 0 for loader in job.loaders], said_R
        )
    dist.barrier()
    return outcome


def uneven(said_R):
    """Return the share of batches whose ranks had different numbers of samples."""
    batches = []
    for loops_R in zip(*(said["loops"] for said in said_R), strict=True):
        for loop_R in zip(*loops_R, strict=False):
            batches += [{len(part) for part in parts} for parts in zip(*loop_R, strict=False)]
    return sum(len(lengths) > 1 for lengths in batches) / max(len(batches), 1)


def deviation(shape, drawn, lengths, said_R):
    """Train alone on the same batches; return how far every rank's parameters are from it."""
    alone = Job(drawn, lengths)
    try:
        shape.run(alone)
    except Exception:
        return {"deviation": None, "alone": traceback.format_exc()}
    expected = alone.parameters()
    worst = 0.0
    for said in said_R:
        for parameter, wanted in zip(said["parameters"], expected, strict=True):
            difference = float(np.abs(parameter - wanted).max() / np.abs(wanted).max())
            worst = max(worst, difference if np.isfinite(difference) else np.inf)  # NaN would compare as equal
    return {"deviation": worst}


BACKEND = os.environ.get("PACELINE_LOOPS_BACKEND", "gloo")


def forked(rank, ranks, store, out, only):
    """Run the shapes on one of the ranks that ``main`` forks."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    dist.init_process_group(BACKEND, init_method=f"file://{store}", rank=rank, world_size=ranks)
    run_all(out, only)
    os._exit(0)  # dozens of groups lie about: their threads may end the process as the interpreter closes


def under_torchrun():
    """Run the shapes on a rank that torchrun has started: ``OUT [NAME ...]``."""
    dist.init_process_group(BACKEND)
    out, *only = sys.argv[1:]
    run_all(out, only)


def run_all(out, only):
    """Run all shapes of this many ranks, or those of these names; the first rank writes."""
    torch.set_num_threads(1)
    outcomes = {}
    for shape in SHAPES:
        if dist.get_world_size() in shape.ranks and (not only or shape.run.__name__ in only):
            faulthandler.dump_traceback_later(60, exit=True)  # says where a rank hangs
            outcomes[shape.run.__name__] = outcome_of(shape)
            if dist.get_rank() == 0:
                Path(out).write_text(json.dumps(outcomes))
    dist.destroy_process_group()


def main():
    ranks, out, *only = sys.argv[1:]
    gc.freeze()  # before the ranks fork: they share what is loaded
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        given = (int(ranks), f"{folder}/store", out, only)
        processes = [fork.Process(target=forked, args=(rank, *given)) for rank in range(int(ranks))]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()
