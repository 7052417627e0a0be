"""Shapes run one after the other on the ranks of a job, and what became of each."""

import faulthandler
import gc
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
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


def outcomes_so_far(names):
    """Run all shapes of this many ranks, or those of these names; after each yield what became of all, by name."""
    torch.set_num_threads(1)
    outcomes = {}
    for shape in SHAPES:
        if dist.get_world_size() in shape.ranks and (not names or shape.run.__name__ in names):
            faulthandler.dump_traceback_later(60, exit=True)  # says where a rank hangs
            outcomes[shape.run.__name__] = outcome_of(shape)
            yield outcomes
    faulthandler.cancel_dump_traceback_later()


def run(rank, names):
    """Run the shapes of these names on this rank; return what became of each, on the first rank."""
    *_, outcomes = outcomes_so_far(names)
    return outcomes


def under_torchrun():
    """Run the shapes on a rank that torchrun has started: ``OUT [NAME ...]``; the first rank writes."""
    dist.init_process_group(os.environ.get("PACELINE_LOOPS_BACKEND", "gloo"))
    out, *names = sys.argv[1:]
    for outcomes in outcomes_so_far(names):
        if dist.get_rank() == 0:
            Path(out).write_text(json.dumps(outcomes))
    dist.destroy_process_group()
