"""Decisions and their words at the very bounds, by hand. Axis: W workers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced import decision
from paceline.coordinator.balanced import reasons as why
from paceline.coordinator.balanced.decision import Forgone
from paceline.coordinator.balanced.limits import Limits, require_fleet
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.predictors import Curves, Forecast, LastValue, Report
from paceline.solver import split
from paceline.solver.decided import FewCurves
from paceline.solver.split import Split, Status


def test_plans_and_limits_are_told_apart_by_who_they_are_and_a_policy_is_told_by_name():
    plan = LoadBalancer(LastValue(), workers="ab", global_batch=8).plan
    limits = Limits.of(Policy(), "ab", 8)
    assert len({plan, replace(plan), limits, replace(limits)}) == 4
    assert plan != replace(plan)
    assert (limits == replace(limits), Forgone() == Forgone()) == (False, False)
    assert Policy() == Policy(warmup=5)
    with pytest.raises(TypeError):
        Policy(5)
    bare = type(plan)(plan.workers, plan.split, plan.forecast, 0.0, False, ())
    assert (bare.iteration, bare.drift_began, bare.why) == (0, False, ".")
    assert np.isnan(bare.drift)
    assert np.isnan(plan.drift)


def test_what_a_policy_leaves_to_its_defaults():
    policy = Policy()
    assert (policy.warmup, policy.change_cost, policy.batch_multiple, policy.lower) == (5, 0.05, 1, 1)
    assert (policy.upper, policy.risk) == (None, "auto")


@pytest.mark.parametrize(
    ("batch", "workers", "multiple"),
    [
        (60, 1, 2),
        (59, 1, 1),
        (58, 1, 1),
        (120, 1, 4),
        (240, 2, 4),
        (124, 1, 4),
        (122, 1, 2),
        (960, 1, 32),
        (992, 1, 32),
    ],
)
def test_the_default_batch_multiple_goes_thirty_times_into_a_share_and_divides_the_batch(batch, workers, multiple):
    assert default_batch_multiple(batch, workers) == multiple


def situation(seconds, sizes, high, limited):
    bounds = SimpleNamespace(high=np.array(high), limited=np.array(limited))
    chosen = Split(np.array(sizes), np.array(seconds), max(seconds), Status.GIVEN)
    return SimpleNamespace(bounds=bounds, policy=Policy(batch_multiple=2)), chosen


@pytest.mark.parametrize(
    ("seconds", "sizes", "high", "limited", "held"),
    [
        ([0.97, 1.0], [4, 4], [4.0, 9.0], [True, False], True),
        ([0.98, 1.0], [4, 4], [4.0, 9.0], [True, False], False),
        ([0.5, 1.0], [4, 4], [5.0, 9.0], [True, False], True),
        ([0.5, 1.0], [4, 4], [6.0, 9.0], [True, False], False),
        ([0.5, 1.0], [4, 4], [4.0, 9.0], [False, False], False),
    ],
)
def test_memory_holds_back_who_is_full_and_ends_a_fiftieth_before_the_last(seconds, sizes, high, limited, held):
    assert decision._held_back(*situation(seconds, sizes, high, limited)).tolist() == [held, False]


def deciding(*, cost, known=0.0, stretch=None, low=0.0, high=64.0, sizes=(8, 8)):
    """Two workers of a second and half a second for each of 16 samples."""
    curves = FewCurves([1.0, 0.5])
    bounds = Limits(16, 1, np.full(2, low), np.full(2, high), np.full(2, np.inf)).own
    forecast = Forecast(np.array([1.0, 2.0]), np.zeros(2))
    return decision.Situation(
        policy=Policy(change_cost=cost),
        workers=("a", "b"),
        global_batch=16,
        horizon=1,
        forecast=forecast,
        curves=curves,
        spared=curves if stretch is None else curves.stretched(np.array(stretch)),
        bounds=bounds,
        fits=not bounds.broken_by(np.array(sizes), 1),
        sizes=np.array(sizes),
        forgone=Forgone(known=known),
        known_before=forecast,
    )


def test_a_change_is_made_only_where_more_than_it_costs_was_forgone():
    """Keeping takes 8 s. Of 16 samples, five and eleven end in 5.5 s; in fractions 16 / 3 s is a third less."""
    gain, bound = 1 - 5.5 / 8, 1 - (16 / 3) / 8
    kept, nothing, reasons = decision.decide(deciding(cost=bound))
    assert (kept.makespan, kept.status, nothing) == (8.0, Status.GIVEN, 0.0)
    assert reasons == [(why.too_little, ("at most ", bound, bound, bound))]
    now = deciding(cost=gain)
    _, nothing, reasons = decision.decide(now)
    assert (nothing, reasons) == (0.0, [(why.too_little, ("", gain, gain, gain))])
    assert (now.forgone.known, now.forgone.bound) == (gain, 0.0)
    best, saved, reasons = decision.decide(deciding(cost=gain, known=1e-9))
    assert (best.sizes.tolist(), best.makespan, saved) == ([5, 11], 5.5, gain)
    assert [words for words, _ in reasons] == [why.moved, why.expected, why.rounded]
    assert reasons[1][1] == (5.5, 8.0, 1, False)
    assert reasons[2][1] == (1, 5.5, 16 / 3)


def test_with_caution_sizes_are_compared_under_stretched_curves_and_told_under_the_plain_ones():
    best, gain, reasons = decision.decide(deciding(cost=0.0, stretch=[2.0, 1.0]))
    assert best.sizes.tolist() == [3, 13]
    assert (best.seconds.tolist(), best.makespan) == ([3.0, 6.5], 6.5), "of the forecast itself"
    assert gain == 1 - 6.5 / 16
    assert reasons[1] == (why.expected, (6.5, 16.0, 1, True))


def test_sizes_beyond_a_bound_are_put_right_whatever_a_change_costs():
    best, gain, reasons = decision.decide(deciding(cost=9.0, high=10.0, sizes=(3, 13)))
    assert best.sizes.tolist() == [6, 10]
    assert gain == 1 - 6.0 / 6.5
    assert [words for words, _ in reasons] == [why.moved, why.broken_bounds]
    assert why.sentence(reasons).endswith(": b has room for only 10 samples.")
    best, _, reasons = decision.decide(deciding(cost=9.0, low=4.0, sizes=(3, 13)))
    assert best.sizes.tolist() == [5, 11]
    assert why.sentence(reasons).endswith(": the previous sizes violated a lower bound or the batch multiple.")


def test_where_the_sizes_are_the_best_nothing_was_forgone():
    now = deciding(cost=0.0, sizes=(5, 11), known=0.25)
    kept, gain, reasons = decision.decide(now)
    assert (kept.sizes.tolist(), gain, reasons) == ([5, 11], 0.0, [(why.nothing_to_gain, ())])
    assert (now.forgone.known, now.forgone.bound) == (0.25, 0.0)


def test_the_best_split_is_the_solvers_own():
    now = deciding(cost=0.0)
    exact = split(Curves.from_speed(np.array([1.0, 2.0])), 16)
    assert now.best().sizes.tolist() == exact.sizes.tolist()
    assert now.best() is not now.best()
    assert (now.proven(), deciding(cost=0.0, sizes=(5, 11)).proven()) == (False, True)


# -- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "before", "said"),
    [
        ([100.0, 100.0, 98.9], None, "from c (1.1 % slower than the median) to a"),
        ([100.0, 100.0, 99.1], None, "from c to a"),
        ([101.1, 101.0, 101.0], [100.0, 101.0, 101.0], "from c to a (1.1 % faster than before)"),
        ([100.9, 101.0, 101.0], [100.0, 101.0, 101.0], "from c to a"),
        ([200.0, 100.0, 50.0], [100.0, 100.0, 100.0], "from c (50 % slower than the median) to a"),  # lost as much
        ([201.0, 100.0, 50.0], [100.0, 100.0, 100.0], "from c to a (101 % faster than before)"),
        ([200.0, 100.0, 51.0], [np.inf, 100.0, 51.0], "from c (49 % slower than the median) to a"),
        ([200.0, 100.0, 51.0], [100.0, 100.0, np.inf], "from c (49 % slower than the median) to a"),
    ],
)
def test_who_explains_a_move_is_named_from_a_hundredth_on(speed, before, said):
    known = None if before is None else Forecast(np.array(before), np.zeros(3))
    if before is not None and not np.isfinite(before).all():  # only a prior stood for that worker
        known = Forecast(np.full(3, 100.0), np.where(np.isfinite(before), 0.1, np.inf))
    sentence = why.moved("abc", np.array([4, 4, 4]), np.array([5, 4, 3]), np.array(speed), known)
    assert sentence == f"Moved 1 sample {said}"


def test_one_of_two_is_compared_with_the_other():
    moved = why.moved("ab", np.array([4, 4]), np.array([6, 2]), np.array([100.0, 60.0]))
    assert moved == "Moved 2 samples from b (40 % slower than a) to a"


def test_rounding_is_worth_a_word_from_three_hundredths_on():
    assert why.rounded(2, 1.0, 0.971) == ""
    assert why.rounded(2, 1.0, 0.969) == "; in multiples of 2 samples, which costs at most 3.1 %"
    assert why.rounded(2, 0.0, 0.0) == ""
    assert why.rounded(2, 0.5, 0.25).endswith("at most 50 %")


def test_a_worker_is_silent_after_three_reports_and_the_least_of_all_counts_is_told():
    assert why.silent("ab", np.array([2, 0])) == ""
    assert "a was missing from the last 3 reports, so its size follows" in why.silent("ab", np.array([3, 2]))
    assert "a and b were missing from at least the last 3 reports, so their" in why.silent("ab", np.array([3, 7]))


def test_who_is_planned_at_a_guess_is_told_unless_nobody_or_everybody_is():
    sizes, nan = np.array([3, 3, 4]), np.nan
    plain = "x left: 10 samples split again over 3 workers, 3 to 4 each"
    assert why.split_again("x left", "abc", sizes, np.array([nan, nan, nan])) == plain
    assert why.split_again("x left", "abc", sizes, np.array([1.0, 2.0, 3.0])) == plain
    two = why.split_again("x left", "abc", sizes, np.array([nan, 1.0, nan]))
    assert two == f"{plain}; a and c have not reported yet, so they are planned at the median speed of the others"
    assert why.split_again("x left", "a", sizes[:1], np.array([9.0])) == (
        "x left: 3 samples split again over 1 worker, 3 each"
    )


def test_probing_is_told_before_or_after_the_other_reasons():
    moved = [(why.resumed, (1,))]
    assert why.with_probing(moved, 1, 0) == (
        "Resumed after 1 iteration; took back 1 sample that had been moved for a while"
    )
    kept = why.with_probing([(why.nothing_to_gain, ())], 2, 3)
    assert kept.startswith("Took back 2 samples that had been moved for a while and moved 3 samples for a while, to")
    assert kept.endswith("; otherwise kept the sizes: no split is expected to be faster")
    assert why.moved_samples(np.array([5, 5, 5]), np.array([2, 7, 6])) == 3


def test_bounds_are_said_to_be_broken_by_one_by_several_or_by_no_upper_one():
    sizes = np.array([8, 8, 8])
    assert why.broken_bounds("abc", sizes, np.array([8.0, 7.0, 9.0])) == ": b has room for only 7 samples"
    assert why.broken_bounds("abc", sizes, np.array([1.0, 8.0, 9.0])) == ": a has room for only 1 sample"
    assert why.broken_bounds("abc", sizes, np.array([7.0, 7.0, 8.0])) == ": a and b have room for fewer"
    assert "lower bound or the batch multiple" in why.broken_bounds("abc", sizes, np.full(3, 8.0))


@pytest.mark.parametrize("name", ["comm_seconds", "out_of_memory"])
def test_a_reports_every_column_has_one_number_for_each_worker(name):
    require_fleet(Report([1, 1], [1.0, 1.0], **{name: [0, 1]}), 2)
    for wrong in ([0], [0, 0, 0], [[0, 0]], 0):
        with pytest.raises(ValueError, match=f"{name} must hold one .* for each of the 2 workers, got the shape"):
            require_fleet(Report([1, 1], [1.0, 1.0], **{name: wrong}), 2)
