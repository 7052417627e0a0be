"""Audits of functions: many of them in one pair of ranks, because to start ranks takes longer than an audit."""

import gc
import json
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.audit.examine import Audit
from paceline.audit.inquiry import AuditRun
from paceline.audit.inside.begin import recorded
from paceline.audit.tape import load_all


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
        dist.destroy_process_group()
        return AuditRun(load_all(folder), str(folder), error)


def verdicts_of(rank, world_size, folder, cases):
    """Audit cases by their names on this rank; yield all verdicts so far."""
    torch.set_num_threads(1)
    found = {}
    for number, (name, case) in enumerate(cases.items()):
        gc.collect()
        gc.freeze()  # what is left is the imports': to look through it again and again takes a third of all the time
        shared = Path(folder) / str(number)
        shared.mkdir(exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            audit = Audit(Together(case.run, shared, rank, world_size))
            try:
                found[name] = json.loads(audit.verdict().to_json())
            except Exception:
                found[name] = {"status": "failed", "sentence": traceback.format_exc(), "notes": []}
        found[name]["runs started"] = audit.run.runs
        yield found
