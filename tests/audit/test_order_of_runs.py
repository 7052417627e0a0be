"""Which runs an audit makes of a script, in which order, and with which samples in each of them."""

import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent)]

from made_scripts import EXACT, VALUES, Made, by_place, coupled, mean_of, of_ranks, vectors, weighted  # noqa: E402

from paceline.audit import Audit, causes  # noqa: E402
from paceline.audit.arrange import arranged, as_they_were, in_one_process, mixed  # noqa: E402
from paceline.audit.audit_verdict import Cause  # noqa: E402
from paceline.audit.compare import Difference  # noqa: E402
from paceline.audit.comparisons import AuditPlan, BalancedRun  # noqa: E402
from paceline.audit.inquiry import AuditRun, Inquiry  # noqa: E402
from paceline.audit.probe import STEPS, Probe, apart, numbers_of, probing  # noqa: E402
from paceline.audit.tape import Tape, TapedStep  # noqa: E402


def audited(script, steps=3):
    """The verdict on a script, the plans of its runs, and the tapes of the first."""
    plans, tapes = [], []

    def run(plan, alone):
        plans.append((deepcopy(plan), alone))
        found = script(plan, alone)
        tapes.append(found.tapes)
        return found

    return Audit(run, steps=steps).verdict(), plans, next(one for one in tapes if one)


PLAN = AuditPlan(steps=3, precision="float64")
AGAIN = replace(PLAN, supplies="here")
WEIGHTED = mean_of(weighted(lambda one: one["counts"]["tokens"]))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_exact_script_is_run_twice_alike_then_mixed_then_as_one_process(steps):
    _, plans, tapes = audited(Made(EXACT), steps)
    again = replace(AGAIN, steps=steps)
    assert plans == [
        (replace(PLAN, steps=steps), False),
        (again, False),
        (replace(again, arranged=arranged(tapes, mixed(tapes, 1))), False),
        (replace(again, steps=max(steps, 2), arranged=arranged(tapes, in_one_process(None))), True),
    ]


def test_a_script_that_cannot_be_double_is_run_in_single_precision_from_then_on():
    def single(run, plan, alone, found):
        return found if plan.precision == "float32" else AuditRun([], error="no doubles")

    _, plans, _ = audited(Made(EXACT, spoilt=single))
    assert [plan.precision for plan, _ in plans] == ["float64", *["float32"] * 4]


def test_a_random_order_is_run_once_more_with_the_samples_of_the_first_run():
    def shuffled(run, plan, alone, found):
        for tape in found.tapes if plan.arranged is None else ():
            tape.streams = {"data": [[replace(one, digest=run) for one in batch] for batch in tape.streams["data"]]}
        return found

    verdict, plans, tapes = audited(Made(EXACT, spoilt=shuffled))
    assert verdict.cause is None or verdict.cause is Cause.SAME_DATA
    assert plans[2] == (replace(AGAIN, arranged=arranged(tapes, as_they_were)), False)


@pytest.mark.parametrize(
    ("micro", "lengths", "many"),
    [
        (1, {}, 9),
        (1, {"data": 0}, 9),
        (1, {"data": 4}, 4),
        (2, {"data": 9}, 4),
        (2, {"data": 1}, 1),
        (1, {"data": 50}, 9),
    ],
)
def test_a_script_that_is_not_exact_is_probed_in_as_many_runs_as_its_epochs_need(micro, lengths, many):
    verdict, plans, tapes = audited(Made(WEIGHTED, micro=micro, facts={"lengths": lengths}))
    assert (verdict.cause, verdict.detail) == (Cause.TERMS, "it follows the size of tokens")
    rows = probing(tapes)[0]["data"]
    expected = []
    for first in range(0, len(STEPS), many):
        steps = min(many, len(STEPS) - first)
        part = rows[first * micro : (first + steps) * micro]
        expected.append((replace(AGAIN, frozen=True, steps=steps, arranged={"data": part}), False))
    assert plans[3:] == expected


def test_a_script_whose_ranks_may_be_exchanged_but_not_joined_is_probed_as_one_process():
    def rule(batches, state):
        pairs = [[coupled(row[0])] if len(row) == 1 else [vectors(one).mean(axis=0) for one in row] for row in batches]
        return np.mean(pairs, axis=(0, 1))

    verdict, plans, tapes = audited(Made(rule, micro=2))
    assert verdict.cause is Cause.ROWS
    rows = probing(tapes)[0]["data"]
    joined = [[[ref for refs in row for ref in refs]] for row in rows]
    assert plans[4] == (replace(AGAIN, frozen=True, steps=9, arranged={"data": joined}), True)


def test_a_run_of_the_probe_that_fails_or_has_no_numbers_leaves_the_cause_unknown():
    def spoils(change):
        def spoilt(run, plan, alone, found):
            return change(found) if plan.frozen else found

        return Made(WEIGHTED, spoilt=spoilt)

    def not_numbers(found):
        found.tapes[0].steps[8].gradients["last"][1] = np.nan
        return found

    changes = [lambda found: replace(found, error="gone"), lambda found: AuditRun([]), not_numbers]
    for change in changes:
        verdict, _, _ = audited(spoils(change))
        assert verdict.cause is Cause.UNKNOWN


def balanced_rule(weight):
    return Made(of_ranks(lambda samples: vectors(samples).mean(axis=0), weight), balanced=12)


def test_a_balanced_job_is_run_with_uneven_sizes_then_mixed_and_probed_by_its_own_samples():
    script = balanced_rule(lambda own, total, ranks: own / total)
    verdict, plans, _ = audited(script)
    assert plans == [(PLAN, False), (AGAIN, False), (replace(AGAIN, balanced=BalancedRun(uneven=True, seed=1)), False)]
    assert verdict.cause is None
    script = balanced_rule(lambda own, total, ranks: 1 / ranks)
    verdict, plans, _ = audited(script)
    assert verdict.cause is Cause.NOT_WEIGHTED
    assert plans[3] == (replace(AGAIN, balanced=BalancedRun(seed=1)), False)
    numbers, counts = zip(*script.candidates(), strict=True)
    x, y, z = apart(counts)
    given = numbers_of(12, 2, [numbers[x], numbers[y], numbers[z]], [*range(8), *range(4)])
    frozen = replace(AGAIN, frozen=True)
    assert plans[4] == (replace(frozen, steps=9, balanced=BalancedRun(numbers=given)), False)
    one, other = [0] * 12, [7] * 12
    powers = [replace(frozen, steps=4, balanced=BalancedRun(uneven=True, numbers=[one, other, one, one]))]
    first = 5  # of 2 : 3 of twelve samples
    mixed_step = [0] * first + [7] * (12 - first)
    powers.append(replace(powers[0], balanced=BalancedRun(uneven=True, numbers=[one, other, one, mixed_step])))
    assert plans[5:] == [(plan, False) for plan in powers]


def test_steps_from_the_same_parameters_are_as_many_as_the_models_that_take_turns():
    def inquiry(*delivered):
        steps = [TapedStep({"s": one}, {}, {}) for one in delivered]
        return Inquiry(None, base=AuditRun([Tape(0, 1, {}, {}, steps)]), plan=AGAIN)

    assert inquiry(1, 2, 3).frozen(4) == replace(AGAIN, frozen=True, steps=4)
    assert inquiry(1, 1, 2, 2, 2, 3).frozen(4, arranged={}) == replace(AGAIN, frozen=True, steps=12, arranged={})


ONE, OTHER = np.eye(VALUES)[:2]


class Sized:
    """A balanced job of two ranks whose steps have these sizes, and in which a rank counts by a power of its size."""

    def __init__(self, power, off=1.0, sizes=((4, 8), (6, 6), (5, 7), (3, 9)), **spoilt):
        self.power, self.off, self.sizes, self.spoilt = power, off, sizes, spoilt
        kind = {"step": 12, "ranks": 2, "batches": 9, "candidates": [(5, {}), (6, {}), (7, {})]}
        self.kind, self.plans = kind, []
        tape = Tape(0, 2, {}, {}, [TapedStep({}, {}, {})], {"balanced": [kind], "dtypes": ["float64"], **spoilt})
        self.inquiry = Inquiry(self, base=AuditRun([tape, tape]))

    def __call__(self, plan, alone):
        self.plans.append(plan)
        assert (plan.frozen, plan.balanced.uneven, alone) == (True, True, False)
        steps = []
        for number, (sizes, given) in enumerate(zip(self.sizes, plan.balanced.numbers, strict=True)):
            parts = np.split(np.array([ONE if one == 5 else OTHER for one in given]), np.cumsum(sizes)[:-1])
            weights = [size**self.power for size in sizes]
            if number == 3 and len(set(given)) == 2:
                weights[0] *= self.off
            gradient = sum(w * part.mean(axis=0) for w, part in zip(weights, parts, strict=True))
            steps.append(TapedStep({"l": number}, {"w": gradient}, {}, {"sizes": [list(sizes)]}))
        return AuditRun([Tape(0, 2, {}, {}, steps)])


@pytest.mark.parametrize("power", [0.0, 2.0])
@pytest.mark.parametrize(("off", "told"), [(1.0, True), (1.009, True), (0.991, True), (1.011, False), (0.989, False)])
def test_a_power_of_a_ranks_size_is_told_within_a_hundredth(power, off, told):
    assert causes._power(Sized(power, off).inquiry, Sized(power).kind) == (power if told else None)


@pytest.mark.parametrize("sizes", [((4, 8),) * 3 + ((6, 6),), ((3, 4, 5),) * 4])
def test_no_power_is_told_of_equal_sizes_or_of_more_than_two_ranks(sizes):
    script = Sized(2.0, sizes=sizes)
    assert causes._power(script.inquiry, script.kind) is None
    assert len(script.plans) == 1


@pytest.mark.parametrize(
    ("power", "mixing", "cause", "detail"),
    [
        (2.0, [], Cause.SUM, "a rank's weight grows with the square of its batch"),
        (0.0, [], Cause.NOT_WEIGHTED, ""),
        (1.0, [], Cause.UNKNOWN, ""),
        (1.0, ["BatchNorm1d", "Other"], Cause.ROWS, "BatchNorm1d, Other"),
    ],
)
def test_a_balanced_job_is_told_by_its_power_or_else_by_what_mixes_rows(monkeypatch, power, mixing, cause, detail):
    monkeypatch.setattr(causes, "_probe_balanced", lambda inquiry: None)
    script = Sized(power, mixing=mixing)
    verdict = causes.by_size(script.inquiry, Difference(({"w": 1.0},)))
    assert (verdict.cause, verdict.detail, verdict.deviation) == (cause, detail, 1.0)
    script.kind["candidates"] = []
    verdict = causes.by_size(script.inquiry, Difference(({"w": 1.0},)))
    assert verdict.cause is (Cause.ROWS if mixing else Cause.UNKNOWN)


@pytest.mark.parametrize(("control", "cause"), [(100e-8, Cause.NOT_WEIGHTED), (100.1e-8, Cause.CARRIED)])
def test_a_balanced_job_carries_something_over_from_a_hundred_times_the_tolerance_on(monkeypatch, control, cause):
    shown = Probe(control, 0.0, (0.5, 0.5), 0.5, 1.0, 1.0)
    monkeypatch.setattr(causes, "_probe_balanced", lambda inquiry: shown)
    inquiry = Sized(0.0).inquiry
    assert inquiry.tolerance == 1e-8
    assert causes.by_size(inquiry, Difference(({"w": 1.0},))).cause is cause


@pytest.mark.parametrize(("count", "known"), [(0, False), (2, False), (3, True)])
def test_a_balanced_job_is_probed_with_three_samples_or_not_at_all(count, known):
    class Few(Made):
        def candidates(self):
            return super().candidates()[:count]

    tokens = weighted(lambda one: one["counts"]["tokens"])
    verdict, plans, _ = audited(Few(of_ranks(tokens, lambda own, total, ranks: own / total), balanced=12))
    assert (verdict.cause, len(plans)) == ((Cause.TERMS, 5) if known else (Cause.UNKNOWN, 4))


def test_a_step_without_gradients_is_no_multiple_of_one():
    tape = Tape(0, 2, {}, {}, [TapedStep({}, {}, {})])
    verdict = causes.unlike_one(Inquiry(None, base=AuditRun([tape, tape])), Difference(()), tape)
    assert (verdict.cause, verdict.detail) == (Cause.UNKNOWN, "0 times that of one process")


def test_a_script_that_counts_ranks_differently_is_told_in_the_first_run_of_its_probe():
    verdict, plans, _ = audited(Made(by_place([0.5, 1.5], 1)))
    assert (verdict.cause, len(plans)) == (Cause.RANKS, 4)
