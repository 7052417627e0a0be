"""What verdicts are told from: how precise a run is, one process beside several ranks, and the end of a rank."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.audit import causes
from paceline.audit.audit_verdict import AuditStatus, Cause
from paceline.audit.compare import Difference
from paceline.audit.comparisons import AuditPlan
from paceline.audit.examine import Audit
from paceline.audit.inquiry import AuditRun, Inquiry
from paceline.audit.inside import begin
from paceline.audit.tape import Tape, TapedStep


def tape_of(rank=0, ranks=2, steps=1, gradient=(1.0, 0.0), ends=0.0, **facts):
    """The record of a rank whose gradients are these, and whose parameter moves this far."""
    step = TapedStep({}, {"weight": np.array(gradient)}, {"weight": np.full(2, float(ends))})
    return Tape(rank, ranks, {}, {"weight": np.zeros(2)}, [step] * steps, facts)


def asked(*tapes, **known):
    return Inquiry(run=None, base=AuditRun(list(tapes)), **known)


@pytest.mark.parametrize(
    ("dtypes", "coarsest", "floor"),
    [
        (["float64"], "float64", 1e-8),
        (["float64", "float32"], "float32", 1e-3),
        (["float32", "float64"], "float32", 1e-3),
        (["float32", "bfloat16", "float64"], "bfloat16", 3e-2),
        (["float16"], "float16", 3e-2),
    ],
)
def test_what_rounding_explains_is_that_of_the_coarsest_parameters_or_ten_times_the_noise(dtypes, coarsest, floor):
    inquiry = asked(tape_of(dtypes=dtypes))
    assert (inquiry.precision, inquiry.tolerance) == (coarsest, floor)
    inquiry.noise = floor / 20
    assert inquiry.tolerance == floor
    inquiry.noise = floor / 5
    assert inquiry.tolerance == 10 * inquiry.noise
    assert (asked().precision, asked(tape_of()).precision) == ("float64", "float64")


def test_a_verdict_says_where_it_begins_what_was_run_and_how_precisely():
    inquiry = asked(tape_of(steps=3, dtypes=["float32"]), tape_of(1), found={"again": 0.25, "moved": 0.5}, notes=["n"])
    shared = {"steps": 3, "ranks": 2, "precision": "float32", "noise": 0.0, "notes": ("n",)}
    exact, unknown = inquiry.exact(), inquiry.unknown(Cause.CHANCE, "why")
    apart = inquiry.not_exact(Cause.SUM, Difference(({"a": 1e-3}, {"a": 1e-4, "b": 0.002, "c": 0.75})), "detail")
    for found in (exact, unknown, apart):
        assert {name: getattr(found, name) for name in shared} == shared
        assert found.runs == {"again": 0.25, "moved": 0.5}
    assert (exact.status, exact.deviation, exact.cause) == (AuditStatus.EXACT, 0.5, None)
    assert (unknown.status, unknown.cause, unknown.detail) == (AuditStatus.COULD_NOT_TELL, Cause.CHANCE, "why")
    assert (apart.status, apart.cause, apart.detail) == (AuditStatus.NOT_EXACT, Cause.SUM, "detail")
    assert (apart.deviation, apart.first_step, apart.parameter) == (0.75, 1, "b")
    nowhere = inquiry.not_exact(Cause.ORDER, None)
    assert (nowhere.deviation, nowhere.first_step, nowhere.parameter) == (0.0, 0, "")
    assert asked().exact().deviation == 0.0
    assert (asked().exact().steps, asked().exact().ranks) == (0, 0)


@pytest.mark.parametrize(("noise", "amount", "told"), [(0.0, 2e-3, True), (1e-9, 9e-3, False), (1e-9, 1e-2, True)])
def test_a_deviation_below_ten_times_the_tolerance_is_not_told_from_noise(noise, amount, told):
    inquiry = asked(tape_of(dtypes=["float32"]), noise=noise)
    found = inquiry.not_exact(Cause.SUM, Difference(({"a": amount},)))
    assert found.cause is (Cause.SUM if told else Cause.NOISE)
    if not told:
        assert found.detail == "by 1.0e-09, where the deviation is 9.0e-03"


@pytest.mark.parametrize(
    ("factor", "off", "cause", "detail"),
    [
        (0.5, 0.0, Cause.SUM, "0.5 times that of one process"),
        (0.5049, 0.0, Cause.SUM, "0.5049 times that of one process"),
        (0.4951, 0.0, Cause.SUM, "0.4951 times that of one process"),
        (0.5051, 0.0, Cause.UNKNOWN, "0.5051 times that of one process"),
        (0.4949, 0.0, Cause.UNKNOWN, "0.4949 times that of one process"),
        (2.0, 0.0, Cause.TIMES_RANKS, "2 times that of one process"),
        (2.0, 0.199, Cause.TIMES_RANKS, "2 times that of one process"),
        (2.0, 0.201, None, "alone"),
        (1.0, 0.0, Cause.UNKNOWN, "1 times that of one process"),
    ],
)
def test_a_step_unlike_that_of_one_process_is_told_by_how_many_times_as_large_it_is(
    monkeypatch, factor, off, cause, detail
):
    monkeypatch.setattr(causes, "told_apart", lambda inquiry, found, alone: (None, "alone" if alone else "", found))
    first = tape_of(gradient=(factor, off), dtypes=["float32"])
    inquiry, found = asked(first, tape_of(1)), Difference(({"weight": 1.0},))
    verdict = causes.unlike_one(inquiry, found, tape_of(ranks=1))
    if cause is None:
        assert verdict == (None, detail, found)
    else:
        assert (verdict.cause, verdict.detail, verdict.deviation) == (cause, detail, 1.0)


def test_a_step_of_one_process_without_a_gradient_is_no_multiple(monkeypatch):
    monkeypatch.setattr(causes, "told_apart", lambda *of, alone: "probed")
    inquiry = asked(tape_of(), tape_of(1))
    assert causes.unlike_one(inquiry, Difference(()), tape_of(gradient=(0.0, 0.0), ranks=1)) == "probed"


@pytest.mark.parametrize(("apart", "told"), [(1e-3, None), (1.001e-3, "NOT_AVERAGED")])
def test_ranks_are_apart_beyond_what_rounding_explains(apart, told):
    """The largest value of each is 1: distances are relative ones."""
    tapes = [tape_of(rank, gradient=(1.0, apart * rank), ends=1 + apart * rank, dtypes=["float32"]) for rank in (0, 1)]
    audit = Audit(lambda plan, alone: None, base=AuditRun(tapes))
    verdict = audit._ranks_agree()
    assert (verdict and verdict.cause.name) == told
    audit.base = AuditRun(tapes[:1])
    assert audit._ranks_agree() is None


class ExitedError(Exception):
    """The process would have ended."""


@pytest.mark.slow
@pytest.mark.parametrize(("come", "waits"), [(0, 0.0), (7, 0.07), (10**9, 60.0)])
def test_a_rank_ends_once_all_have_written_their_records_or_after_a_minute(tmp_path, monkeypatch, come, waits):
    slept, flushed = [], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == come:
            (tmp_path / "rank1.json").touch()

    def leave(status):
        flushed.append(status)
        raise ExitedError

    monkeypatch.setattr(begin.time, "sleep", sleep)
    monkeypatch.setattr(begin.time, "monotonic", lambda: 5.0 + sum(slept))
    monkeypatch.setattr(os, "_exit", leave)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(flush=lambda name=name: flushed.append(name), write=str))
    (tmp_path / "rank0.json").touch()
    if not come:
        (tmp_path / "rank1.json").touch()
    with pytest.raises(ExitedError):
        begin.end_process(tmp_path, 2)
    assert sum(slept) == pytest.approx(waits + 0.05, abs=0.011)
    assert slept[-1] == 0.05, "the others see it too"
    assert flushed == ["stdout", "stderr", 0]


@pytest.mark.parametrize("rank", [None, 3])
def test_an_audited_process_makes_every_change_with_a_seed_of_its_rank_and_writes_at_its_end(
    tmp_path, monkeypatch, rank
):
    done = []

    class Recorder:
        def __init__(self, plan, folder, end):
            done.append((plan.steps, folder, end))

        def finish(self):
            """Write."""

    class Changes:
        def __init__(self, recorder):
            self.recorder = recorder

        def apply(self, seed):
            done.append(seed)

    monkeypatch.setattr(begin, "StepRecorder", Recorder)
    monkeypatch.setattr(begin, "Patches", Changes)
    monkeypatch.setattr(begin, "watch_balanced", lambda patches: done.append(type(patches)))
    monkeypatch.setattr(begin.atexit, "register", lambda function: done.append(function.__name__))
    (tmp_path / "plan").write_text(AuditPlan(steps=7).to_json())
    monkeypatch.setenv("PACELINE_AUDIT_PLAN", str(tmp_path / "plan"))
    monkeypatch.setenv("PACELINE_AUDIT_FOLDER", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", str(rank))
    begin.begin()
    assert done == [(7, tmp_path, begin.end_process), begin.SEED + (rank or 0), Changes, "finish"]
