"""The way from a batch to the next plan is short: functions of ours that an iteration of a live job runs."""

import sys
import threading
from pathlib import Path

import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, attach

OURS = str(Path(paceline.__file__).parent)
MOST = 165
"""Functions that the job of the last value runs in an iteration, with its plan: some 135 where sizes stay as they are,
of which 50 plan, and 158 where every plan changes them, as on a busy machine. A CPU quota takes a few more."""

WARM = 16


def counted(rank):
    """Train, and return how many functions of ours each iteration ran, and whether it made a plan."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    loader = BalancedLoader(torch.zeros(4096, 64), 64)
    balance = attach(model, loader, predictor=LastValue())
    counts, plans, called = [], [], 0

    def note(frame, event, argument):
        nonlocal called
        called += event == "call" and frame.f_code.co_filename.startswith(OURS)

    batches = iter(loader)
    threading.setprofile(note)  # gradients arrive in a thread of torch
    for number in range(WARM + 15):
        sys.setprofile(note if number >= WARM else None)
        model(next(batches)).square().mean().backward()
        sys.setprofile(None)
        counts.append(called)
        plans.append(balance.plan.iteration)
        called = 0
    threading.setprofile(None)
    return counts[WARM:], plans


def test_every_iteration_plans_and_runs_few_functions():
    (counts, plans), _ = run_ranks(2, counted)
    assert plans == list(range(1, len(plans) + 1))
    assert sorted(counts)[len(counts) // 2] <= MOST
