"""Deviations exactly at the limits of an audit: each step of it goes on up to the tolerance, and not beyond."""

import numpy as np
import pytest

from paceline.audit import causes, examine
from paceline.audit.audit_verdict import AuditStatus, Cause
from paceline.audit.compare import Difference
from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.examine import Audit
from paceline.audit.inquiry import AuditRun
from paceline.audit.tape import DRAWN, Sample, Tape, TapedStep

LIMIT = 1e-3
BEYOND = LIMIT * 1.001


def tapes_of(ranks=2, steps=2, streams=("s",), step_facts=None, **facts):
    """Ranks whose parameters are in single precision, so that a thousandth is what rounding explains."""
    found = []
    for rank in range(ranks):
        taken = [
            TapedStep(dict.fromkeys(streams, k + 1), {"w": np.ones(2)}, {"w": np.ones(2)}, dict(step_facts or {}))
            for k in range(steps)
        ]
        batches = {
            name: [[Sample(rank * 100 + 10 * k + j, {"x": 1}) for j in range(2)] for k in range(steps)]
            for name in streams
        }
        found.append(Tape(rank, ranks, batches, {"w": np.ones(2)}, taken, {"dtypes": ["float32"], **facts}))
    return found


class Stubbed(Audit):
    """An audit whose comparisons are given: by the name of each, how far it deviates; None if it failed."""

    def compared(self, name, plan):
        self.asked.append((name, plan))
        amount = self.given[name].pop(0) if isinstance(self.given[name], list) else self.given[name]
        run = AuditRun(self.base.tapes, error="" if amount is not None else "it failed")
        return (None if amount is None else Difference(({"w": amount},))), run


def stubbed(tapes, given=None, run=None, **known):
    audit = Stubbed(run, base=AuditRun(tapes, folder="here"), plan=AuditPlan(steps=2), steps=2, **known)
    audit.given, audit.asked = given or {}, []
    return audit


def cause_of(verdict):
    return verdict and verdict.cause


@pytest.mark.parametrize(("noise", "cause"), [(0.0, None), (0.1, None), (0.1001, Cause.NOISE), (None, Cause.FAILED)])
def test_two_equal_runs_may_differ_by_a_tenth(noise, cause):
    audit = stubbed(tapes_of(), {"an equal run": noise})
    verdict = audit._repeats()
    assert cause_of(verdict) is cause
    assert audit.asked == [("an equal run", audit.plan)]
    assert audit.noise == (noise or 0.0)
    assert cause is None or verdict.status is AuditStatus.COULD_NOT_TELL


@pytest.mark.parametrize(
    ("starts", "gradients", "ends", "cause"),
    [
        (LIMIT, 0, 0, None),
        (BEYOND, 0, 0, Cause.STARTS),
        (BEYOND, LIMIT, 0, Cause.STARTS),
        (BEYOND, BEYOND, 0, None),
        (BEYOND, BEYOND, 0.99 * LIMIT, None),
        (BEYOND, BEYOND, LIMIT, Cause.STARTS),
        (0, BEYOND, LIMIT, None),
        (0, LIMIT, BEYOND, None),
        (0, BEYOND, BEYOND, Cause.NOT_AVERAGED),
    ],
)
def test_ranks_are_apart_from_just_beyond_the_tolerance(monkeypatch, starts, gradients, ends, cause):
    monkeypatch.setattr(examine.compare, "starts_differ", lambda tapes: starts)
    monkeypatch.setattr(examine.compare, "ends_differ", lambda tapes: ends)
    monkeypatch.setattr(examine.compare, "ranks_differ", lambda tapes: Difference(({"w": gradients},)))
    audit = stubbed(tapes_of())
    assert cause_of(audit._ranks_agree()) is cause
    monkeypatch.setattr(examine.compare, "not_a_number", lambda tapes: Difference(({"w": np.inf},)))
    assert cause_of(audit._ranks_agree()) is Cause.NOT_A_NUMBER


def test_shards_have_a_name_of_their_own_or_other_shapes(monkeypatch):
    monkeypatch.setattr(examine.compare, "starts_differ", lambda tapes: 1.0)
    monkeypatch.setattr(examine.compare, "ends_differ", lambda tapes: 1.0)
    monkeypatch.setattr(examine.compare, "ranks_differ", lambda tapes: Difference(({"w": 1.0},)))
    audit = stubbed(tapes_of())
    assert cause_of(audit._ranks_agree()) is Cause.STARTS
    for tape in audit.base.tapes:
        tape.start = {"module.flat_param": np.ones(2), "other": np.ones(1)}
    assert audit._ranks_agree() is None
    audit.base.tapes[1].start["other"] = np.ones(3)
    assert cause_of(audit._ranks_agree()) is Cause.STARTS


@pytest.mark.parametrize(("mixed", "told"), [(LIMIT, "alone"), (BEYOND, "told"), (None, Cause.FAILED)])
def test_a_plain_script_is_told_apart_from_just_beyond_the_tolerance(monkeypatch, mixed, told):
    audit = stubbed(tapes_of(), {"samples exchanged": mixed})
    monkeypatch.setattr(Audit, "_alone", lambda self: "alone")
    monkeypatch.setattr(causes, "told_apart", lambda inquiry, found: ("told", inquiry, found.largest))
    verdict = audit._moved()
    if told == "told":
        assert verdict == ("told", audit, mixed)
    elif told == "alone":
        assert verdict == "alone"
    else:
        assert (verdict.cause, verdict.detail) == (told, "it did not run with its samples exchanged")


@pytest.mark.parametrize(
    ("uneven", "equal", "told"),
    [
        (LIMIT, 0, None),
        (BEYOND, LIMIT, "by size"),
        (BEYOND, BEYOND, "apart"),
        (BEYOND, None, "apart"),
        (None, 0, Cause.UNEVEN),
    ],
)
def test_a_balanced_job_is_told_apart_from_just_beyond_the_tolerance(monkeypatch, uneven, equal, told):
    tapes = tapes_of(balanced=[{"step": 4}], step_facts={"sizes": [[1, 3]]})
    audit = stubbed(tapes, {"uneven sizes": uneven, "samples exchanged": equal})
    monkeypatch.setattr(causes, "told_apart", lambda inquiry, found: ("apart", found.largest))
    monkeypatch.setattr(causes, "by_size", lambda inquiry, found: ("by size", found.largest))
    verdict = audit._moved()
    if isinstance(told, str):
        assert verdict == (told, uneven)
    else:
        assert cause_of(verdict) is told
        assert not told or verdict.detail == "it failed"
    plans = [BalancedRun(uneven=True, seed=1), BalancedRun(seed=1)]
    assert [plan.balanced for _, plan in audit.asked] == plans[: 1 + isinstance(told, str)]
    assert audit.notes == []


@pytest.mark.parametrize(("factor", "told"), [(1 + LIMIT, None), (1 + 2 * LIMIT, "unlike")])
def test_one_process_is_compared_in_its_first_step_alone(monkeypatch, factor, told):
    ran = []

    def run(plan, alone):
        ran.append((plan.steps, alone))
        tapes = tapes_of(1, steps=plan.steps)
        tapes[0].steps[0].gradients = {"w": np.array([1.0, 1.0])}
        tapes[0].steps[1].gradients = {"w": np.array([50.0, 1.0])}
        return AuditRun(tapes)

    tapes = tapes_of()
    tapes[0].steps[0].gradients = {"w": np.array([1.0, factor])}
    audit = stubbed(tapes, run=run)
    monkeypatch.setattr(causes, "unlike_one", lambda inquiry, found, one: ("unlike", found.largest, one.world_size))
    verdict = audit._alone()
    assert (verdict and verdict[0]) == told
    assert audit.found["one process, first step"] == pytest.approx(factor - 1, rel=1e-6)
    assert ran == [(2, True)]
    assert stubbed(tapes[:1])._alone() is None


@pytest.mark.parametrize("wrong", ["error", "no tapes", "two ranks"])
def test_a_script_that_is_no_single_process_is_not_compared_with_one(wrong):
    def run(plan, alone):
        tapes = tapes_of(2 if wrong == "two ranks" else 1)
        return AuditRun([] if wrong == "no tapes" else tapes, error="gone" if wrong == "error" else "")

    audit = stubbed(tapes_of(), run=run)
    assert audit._alone() is None
    assert audit.notes == ["It was not compared with one process: it does not run as one."]
    assert audit.found == {}


def test_one_process_gets_as_many_micro_batches_as_it_takes():
    given = []

    def run(plan, alone):
        given.append(plan.arranged["s"])
        (tape,) = tapes_of(1)
        tape.steps = [
            TapedStep({"s": 3 * (k + 1)}, step.gradients, step.parameters) for k, step in enumerate(tape.steps)
        ]
        tape.streams["s"] *= 3
        return AuditRun([tape])

    audit = stubbed(tapes_of(), run=run)
    assert audit._alone() is None
    first, second = given
    assert [len(row[0]) for row in first] == [4, 4]
    assert [len(row[0]) for row in second] == [2, 1, 1] * 2
    assert sorted(ref for row in second for ref in row[0]) == sorted(ref for row in first for ref in row[0])


@pytest.mark.parametrize(
    ("streams", "facts", "kinds", "told"),
    [
        ((), {}, {}, Cause.NO_SAMPLES),
        ((), {}, {"balanced": [{"step": 4}]}, None),
        ((f"{DRAWN} (2,) []",), {"beside": True}, {}, Cause.NO_SAMPLES),
        ((f"{DRAWN} (2,) []",), {"draws": True}, {"balanced": [{}]}, None),
        ((f"{DRAWN} (2,) []",), {}, {}, None),
        (("s",), {"beside": True, "draws": True}, {}, None),
    ],
)
def test_a_script_needs_samples_that_can_be_exchanged_or_a_balanced_loader(streams, facts, kinds, told):
    tapes = tapes_of(streams=streams, step_facts=facts, **kinds)
    audit = Audit(lambda plan, alone: AuditRun(tapes, folder="there"), steps=2)
    assert cause_of(audit._begin()) is told
    assert audit.plan == AuditPlan(steps=2, precision="float64", supplies="there")
    if told is None:
        own = "has no BalancedLoader" in audit.notes[0]
        assert own is not bool(kinds)
        assert audit.notes[-1].startswith("Dropout and loading processes are off")
    notebook = Audit(lambda plan, alone: AuditRun(tapes_of(), folder="there"), steps=3, notebook=True)
    assert notebook._begin() is None
    assert notebook.notes == ["The script took 2 steps only.", "Dropout is off."]
