"""Workers, the pushes that wait for others, accounts and verdicts: each number by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import Ledger, Outcome, Stamp, Verdict
from paceline.coordinator.asynchronous.epoch_sampler import Drawn
from paceline.coordinator.asynchronous.optimizer import flaw, miscounted
from paceline.coordinator.asynchronous.server import WASTED, Account
from paceline.coordinator.asynchronous.store import Gathered, Push
from paceline.coordinator.asynchronous.workers import Member, Workers, WorkerStep


def drawn_of(count):
    return Drawn(np.arange(count), np.zeros(count, np.int64))


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_new_worker_and_a_new_fleet_have_done_nothing():
    one, fleet = Member("a"), Workers()
    assert (one.clock, one.step, one.worked_on, one.abandoned, one.pushed, one.extra) == (0, None, -1, None, (), 0)
    assert math.isnan(one.staleness)
    assert (fleet.version, fleet.pushes, fleet.lost, fleet.members, len(fleet), list(fleet)) == (0, 0, 0.0, {}, 0, [])
    step = WorkerStep(Stamp(3, 4), drawn_of(5))
    assert math.isnan(step.expected)
    assert (step.began, step.count(None), step.count(2), step.count(0)) == (0, 5, 2, 0)


def test_workers_of_one_name_are_two_workers():
    assert Member("a") != Member("a")
    assert Workers() != Workers()
    assert len({Member("a"), Member("a")}) == 2


def test_a_staleness_is_smoothed_by_a_fifth_and_the_last_two_pushes_are_kept():
    one = Member("a")
    for number, (staleness, smoothed) in enumerate(((4, 4.0), (9, 5.0), (0, 4.0), (4, 4.0)), start=1):
        one.note(staleness, now=10.0 * number)
        assert (one.staleness, one.clock) == (pytest.approx(smoothed), number)
        assert one.pushed == tuple(10.0 * k for k in range(max(number - 1, 1), number + 1))


def test_a_late_step_is_the_one_that_was_given_up_and_no_other():
    one, step = Member("a"), WorkerStep(Stamp(3, 4), drawn_of(5))
    assert one.late(Stamp(3, 4)) is None
    one.abandoned = step
    assert one.late(Stamp(3, 4)) is step
    assert (one.late(Stamp(3, 5)), one.late(Stamp(2, 4))) == (None, None)


@pytest.mark.parametrize(("workers", "lost"), [("", 6.0), ("a", 6.0), ("ab", 3.0), ("abc", 2.0)])
def test_what_is_lost_with_a_step_is_what_each_worker_pushed_meanwhile(workers, lost):
    fleet = Workers(pushes=9, lost=0.5, members={name: Member(name) for name in workers})
    fleet.give_up(WorkerStep(Stamp(0, 0), drawn_of(1), began=3))
    assert fleet.lost == 0.5 + lost


def test_the_slowest_has_the_fewest_pushes_and_came_first_of_these_and_a_lag_is_that_of_a_step_under_way():
    members = [Member("a", clock=2), Member("b", clock=1), Member("c", clock=1)]
    fleet = Workers(version=7, members={one.name: one for one in members})
    assert fleet.slowest is members[1]
    assert [one.name for one in fleet] == ["a", "b", "c"]
    members[0].step = WorkerStep(Stamp(5, 0), drawn_of(1))
    members[1].step = WorkerStep(Stamp(7, 1), drawn_of(1))
    assert [fleet.lag(one) for one in members] == [2, 0, -1]


# -- gathered pushes -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    pushes=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1.0, 0.5, 0.2])), min_size=1, max_size=5),
    mean=st.booleans(),
    by_samples=st.booleans(),
    is_linear=st.booleans(),
)
def test_what_is_gathered_is_the_mean_of_all_samples_or_the_sum_of_what_each_push_would_do_alone(
    pushes, mean, by_samples, is_linear
):
    gathered = Gathered(mean, by_samples, batch=8, is_linear=is_linear)
    for number, (samples, factor) in enumerate(pushes):
        assert len(gathered) == number
        gathered.pushes.append(Push("a", drawn_of(samples), 0, factor))
    gradients = np.arange(1.0, len(pushes) + 1)
    # An optimizer that is linear moves along rate * gradient; another one is told the samples by the gradient's size.
    shares = [samples if mean else samples / 8 if by_samples else 1.0 for samples, _ in pushes]
    weights = [share * factor for share, (_, factor) in zip(shares, pushes, strict=True)]
    assert [gathered.weight(push) for push in gathered.pushes] == pytest.approx(weights)
    moved = gathered.factor * gathered.scale * np.average(gradients, weights=weights)
    whole = float(weights @ gradients)
    assert moved == pytest.approx(whole / sum(shares) if mean else whole)
    if mean or is_linear:
        assert gathered.scale == 1.0
    else:
        assert gathered.scale == pytest.approx(sum(shares) / len(shares))


def test_nothing_is_gathered_at_first_and_a_time_is_not_known_unless_said():
    gathered = Gathered(mean=False, by_samples=True, batch=8)
    assert (gathered.is_linear, gathered.pushes, len(gathered)) == (True, [], 0)
    assert Gathered(False, True, 8).pushes is not gathered.pushes
    assert math.isnan(Push("a", drawn_of(1), 0, 1.0).seconds)


# -- accounts ------------------------------------------------------------------------------------------------------


def test_an_account_books_each_outcome_apart_and_times_that_are_times():
    account = Account()
    assert (account.steps, account.samples, account.seconds, account.largest_staleness) == ({}, {}, {}, 0)
    assert (account.applied, account.wasted) == (0, 0)
    for number, outcome in enumerate(Outcome, start=1):
        for _ in range(2):
            account.note(outcome, samples=number, staleness=10 * number)
            account.took(outcome, float(number))
        for nothing in (0.0, -1.0, math.nan, math.inf):
            account.took(outcome, nothing)
    assert account.steps == dict.fromkeys(Outcome, 2)
    assert account.samples == {outcome: 2 * number for number, outcome in enumerate(Outcome, start=1)}
    assert account.seconds == {outcome: 2.0 * number for number, outcome in enumerate(Outcome, start=1)}
    assert (account.applied, account.wasted) == (2 * (1 + 2), 2 * (4 + 5 + 6))
    assert account.largest_staleness == 30, "of what was gathered; what was dropped is staler"
    account = Account()
    account.took(Outcome.APPLIED, 0.0)
    assert account.seconds == {}
    for shortest_or_longest in (5e-324, 1e308):
        account = Account()
        account.took(Outcome.APPLIED, shortest_or_longest)
        assert account.seconds == {Outcome.APPLIED: shortest_or_longest}


def test_an_empty_ledger_has_wasted_nothing_and_one_of_waste_alone_all():
    ledger = Ledger()
    assert (ledger.wasted_share, ledger.wasted_seconds_share, ledger.largest_staleness) == (0.0, 0.0, 0)
    assert ledger.steps(*Outcome) == 0
    ledger.note("a", Outcome.REFUSED, samples=3)
    assert (ledger.wasted_share, ledger.wasted_seconds_share, ledger.largest_staleness) == (1.0, 0.0, 0)
    ledger.took("b", Outcome.DROPPED, 2.0)
    assert (ledger.wasted_seconds_share, ledger.accounts["b"].steps) == (1.0, {})
    ledger.note("b", Outcome.APPLIED, samples=9, staleness=4, seconds=6.0)
    ledger.note("c", Outcome.APPLIED, samples=0)
    assert (ledger.wasted_share, ledger.wasted_seconds_share, ledger.largest_staleness) == (0.25, 0.25, 4)
    assert (ledger.steps(Outcome.APPLIED), ledger.steps(*WASTED), ledger.steps()) == (2, 1, 0)
    ledger = Ledger()
    ledger.note("a", Outcome.APPLIED, samples=1)
    assert (ledger.largest_staleness, ledger.accounts["a"].seconds) == (0, {})
    assert WASTED == (Outcome.DROPPED, Outcome.ABANDONED, Outcome.REFUSED)


# -- flaws and verdicts --------------------------------------------------------------------------------------------


def test_a_push_stands_for_one_sample_at_least_and_for_no_more_than_were_assigned():
    assert [samples for samples in range(-2, 12) if not miscounted(samples, 8)] == list(range(1, 9))
    assert miscounted(1, 1) == ""
    assert miscounted(0, 8) == "it says to be the mean of 0 samples, and 8 were assigned"


def test_the_first_flaw_of_a_gradient_is_its_kind_then_its_shape_then_its_numbers():
    there = np.zeros(2)
    assert flaw(np.zeros(3, int), there) == "it is int64, and must be an array of floats"
    assert flaw(np.zeros(2, bool), there) == "it is bool, and must be an array of floats"
    assert flaw((1.0, 2.0), there) == "it is tuple, and must be an array of floats"
    assert flaw(np.float64(1.0), there) == "it is float64, and must be an array of floats"
    assert flaw(np.full((2, 1), np.nan), there) == "its shape is (2, 1), that of the parameters (2,)"
    assert flaw(np.array([np.nan, 1.0]), there) == "1 of its 2 numbers is NaN or infinite"
    assert flaw(np.array([np.nan, np.inf]), there) == "2 of its 2 numbers are NaN or infinite"
    assert [flaw(np.zeros(2, kind), there) for kind in (np.float16, np.float32, np.float64)] == [""] * 3


def test_a_verdict_says_nothing_of_a_step_unless_it_is_told():
    told = Verdict(worker="a", outcome=Outcome.REFUSED, version=3)
    assert (told.samples, told.staleness, told.factor, told.reason, told.given_up) == (0, -1, 0.0, "", ())


@pytest.mark.parametrize(
    ("outcome", "told", "said"),
    [
        (Outcome.APPLIED, {"samples": 1, "staleness": 0}, "a was 0 versions stale: its 1 sample count in full"),
        (Outcome.DAMPED, {"samples": 2, "staleness": 1, "factor": 1 / 3}, "its 2 samples count 0.333 times"),
        (Outcome.GATHERED, {"samples": 2, "staleness": 1}, "its 2 samples wait to be applied together with others;"),
        (Outcome.DROPPED, {"samples": 2, "reason": "so"}, "Dropped the push of a: so; its 2 samples go back"),
        (Outcome.REFUSED, {"reason": "so"}, "Refused the push of a: so"),
        (Outcome.ABANDONED, {"samples": 1, "reason": "so"}, "Abandoned the push of a: so; its 1 sample go back"),
    ],
)
def test_a_verdict_is_a_sentence_with_its_numbers(outcome, told, said):
    why = Verdict(worker="a", outcome=outcome, version=3, **told).why
    assert said in why
    assert why.endswith(said) or outcome is Outcome.GATHERED
