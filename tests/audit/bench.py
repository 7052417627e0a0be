"""Audits of functions: many of them in one pair of ranks, because to start ranks takes longer than an audit."""

import gc
import importlib
import json
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.audit import Audit
from paceline.audit.inside.patches import Patches
from paceline.audit.inside.step_recorder import StepRecorder
from paceline.audit.run import AuditRun, load_pickle


class Ended(BaseException):
    """The audited function has taken its steps."""


@contextmanager
def recorded(plan, folder, rank):
    """Record what runs inside; it ends with :class:`Ended` after its last step, which is not seen outside."""

    def end(folder, ranks):
        raise Ended

    recorder = StepRecorder(plan, folder, end)
    patches = Patches(recorder)
    patches.apply(20 + rank)
    try:
        yield recorder
        recorder.finish()
    except Ended:
        pass
    finally:
        patches.undo_stack.close()


class Together:
    """Runs a function under audit on this rank; all ranks make the same calls, and so read the same records.

    Parameters
    ----------
    work
        The script, as a function without arguments.
    folder
        A folder that all ranks share.
    """

    def __init__(self, work, folder, rank, world_size):
        self.work, self.folder, self.rank, self.world_size = work, folder, rank, world_size
        self.runs = 0

    def __call__(self, plan, alone):
        self.runs += 1
        folder = self.folder / (f"{self.runs}-{self.rank}" if alone else str(self.runs))
        folder.mkdir(exist_ok=True)
        rank, ranks = (0, 1) if alone else (self.rank, self.world_size)
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        error = ""
        try:
            with recorded(plan, folder, rank):
                self.work()
        except (Exception, SystemExit) as raised:
            error = f"{type(raised).__name__}: {raised}"
        if not alone:
            said = [None] * ranks
            dist.all_gather_object(said, error)
            error = max(said)
        # Models first: the garbage collector would wait with the interpreter's lock for gloo's threads, which need it.
        gc.collect()
        dist.destroy_process_group()
        records = [load_pickle(path) for path in sorted(folder.glob("*.record"))]
        return AuditRun(records, str(folder), error)


def verdicts_of(rank, world_size, folder, names):
    """Audit cases, ``module/name``, on this rank; return their verdicts by these names."""
    torch.set_num_threads(1)
    return {
        name: verdict_of(case_of(name), rank, world_size, Path(folder) / str(number))
        for number, name in enumerate(names)
    }


def case_of(name):
    """Return the case of ``MODULE/NAME``."""
    module, _, case = name.partition("/")
    return importlib.import_module(module).CASES[case]


def verdict_of(case, rank, world_size, folder):
    """Audit a case on this rank."""
    gc.freeze()  # what is left is the imports': to look through it again and again takes a third of all the time
    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        audit = Audit(Together(case.run, folder, rank, world_size))
        try:
            found = json.loads(audit.verdict().to_json())
        except Exception:
            found = {"status": "failed", "sentence": traceback.format_exc(), "notes": []}
    return {**found, "runs started": audit.run.runs}
