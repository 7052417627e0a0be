"""The faults of docs/reference/faults.md that no other file tries: clocks that jump, kernel files nobody can read."""

import itertools
import re
import time
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
import torch
from ranks import run_ranks
from recorded_runs import iterations, written
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.coordinator import LoadBalancer
from paceline.predictors import EWMA, Report
from paceline.recording import ControlGroup, Recorder, all_covariates, default_covariates, merge, read_run
from paceline.torch import BalancedLoader, attach

FAULTS = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"


@pytest.mark.parametrize("jump", [-3600.0, -1e-3, 0.5, 3600.0], ids="{:+g} s".format)
def test_clock_change_keeps_durations(tmp_path, monkeypatch, jump):
    """As NTP steps it, or a person sets it: durations come from the monotonic clock, only ``start`` from this one."""
    microseconds, ahead = itertools.count(), [0.0]  # a true clock may go on by more than a millisecond meanwhile
    monkeypatch.setattr(time, "time", lambda: 1.7e9 + 1e-6 * next(microseconds) + ahead[0])
    with Recorder(tmp_path / "0.jsonl", "0") as recorder:
        for k in range(6):
            ahead[0] = jump * (k >= 3)
            with recorder.iteration(samples=8) as step, step.waiting():
                pass
    trace = merge([tmp_path / "0.jsonl"])
    assert ((trace.seconds > 0) & (trace.seconds < abs(jump) + 60)).all()
    assert (trace.seconds < 60).all()
    assert np.sign(trace.start[3, 0] - trace.start[2, 0]) == np.sign(jump)


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_run_whose_clock_was_set_is_shown(tmp_path, jump):
    from dataclasses import replace

    records = [replace(one, time=one.time + jump * (one.index > 4)) for one in iterations(10)]
    written(tmp_path / "run.jsonl", records).close()
    assert read_run(tmp_path / "run.jsonl").fleet_columns["index"].tolist() == list(range(10))
    shown = CliRunner().invoke(cli.app, ["watch", "--once", str(tmp_path / "run.jsonl")])
    assert shown.exit_code == 0, shown.output
    assert "10 iterations recorded" in shown.output


def test_unreadable_kernel_files_are_no_error(tmp_path):
    """As in a container that hides /proc, and where no control groups are mounted."""
    assert ControlGroup.current(tmp_path) is None
    for covariates in (default_covariates(root=tmp_path), all_covariates(root=tmp_path)):
        with Recorder(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", "0", covariates) as recorder:
            for _ in range(3):
                with recorder.iteration(samples=8):
                    pass
        trace = merge([recorder.path])
        # Without a control group nothing can throttle: that covariate is known to be 0.
        named = [covariate.name for covariate in default_covariates(root=tmp_path) if covariate.name != "throttled"]
        assert np.isnan(trace.covariates_named(named)).all()


def test_lying_rank_gets_few_samples():
    """It reports a time of a nanosecond and of most of an hour in turns; the plan stays a split of the batch."""
    balancer = LoadBalancer(EWMA(), workers=["honest", "liar"], global_batch=64)
    for k in range(40):
        plan = balancer.plan
        seconds = [plan.sizes[0] / 100.0, plan.sizes[1] * 100.0 if k % 2 else 1e-9]
        assert balancer.step(Report(plan.sizes, seconds)).sizes.sum() == 64
    assert balancer.plan.sizes[0] > balancer.plan.sizes[1]


def opened(rank, cycles):
    """Return descriptors and threads of this process after attaching and detaching so often, without collecting."""
    import gc

    held = []
    gc.disable()
    for _ in range(cycles):
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        balance = attach(model, BalancedLoader(torch.randn(48, 4), 8))
        balance.close()
        held.append((len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))))
    return held


def test_repeated_attach_leaves_nothing_open():
    """Each balance left a process group with its threads and sockets until the garbage collector came by."""
    for held in run_ranks(2, opened, 12):
        assert max(held[6:]) == max(held[:6]), held


def outlived(rank):
    """Return which parts of jobs are still there after their last name is gone, without collecting."""
    import gc

    gc.disable()
    return [left_of_a_job() for _ in range(2)][-1]  # torch itself keeps the first model of a process for a while


def left_of_a_job():
    model, loader = DistributedDataParallel(torch.nn.Linear(4, 2)), BalancedLoader(torch.randn(48, 4), 8)
    balance = attach(model, loader)
    for inputs in loader:
        model(inputs).sum().backward()
    balance.close()
    known = {"model": ref(model), "loader": ref(loader), "balance": ref(balance)}
    del model, loader, balance, inputs
    return [name for name, alive in known.items() if alive() is not None]


def test_closed_balance_frees_model_and_loader():
    """They were one cycle of references: the memory of a model came back with a full garbage collection, if ever."""
    assert run_ranks(2, outlived) == [[], []]


@pytest.mark.checkout
def test_every_fault_names_an_existing_test():
    tests = Path(__file__).parents[1]
    named = re.findall(r"`(test_\w+)\.py::(test_\w+)`", FAULTS.read_text("utf-8"))
    assert len(named) >= 15
    for file, test in named:
        assert f"def {test}(" in next(tests.rglob(f"{file}.py")).read_text("utf-8"), (file, test)
