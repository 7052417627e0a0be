"""Planning takes little beside the waiting that it fights, and comes at once where it matters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.torch.reporting.pace import GAIN, MOST_PATIENT, WARM_UP, WORTH, Pace

ONE = np.ones(2)


def settled():
    pace = Pace()
    for _ in range(WARM_UP):
        assert pace.wants_plan(np.array([0.1, 0.1]), ONE, plan_seconds=0.001)
    return pace


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=10, max_size=200), st.floats(1e-4, 1e-2))
def test_plans_take_at_most_a_tenth_of_the_waiting(seconds, plan_seconds):
    pace, plans, waited = settled(), 0, 0.0
    for pair in seconds:
        waited += max(pair) - sum(pair) / 2
        if pace.wants_plan(np.array(pair), ONE, plan_seconds):
            plans += 1
            pace.planned(acted=True)
    assert plans * plan_seconds * WORTH <= waited + 1e-9


def test_balanced_ranks_are_left_alone():
    pace = settled()
    assert not any(pace.wants_plan(np.array([0.1, 0.1]), ONE, 0.001) for _ in range(1000))


def test_a_rank_that_turns_slow_is_answered_in_the_same_iteration():
    assert settled().wants_plan(np.array([0.1, 0.2]), ONE, plan_seconds=0.001)


def test_plans_that_change_nothing_become_rarer_up_to_a_limit():
    pace, gaps, gap = settled(), [], 0
    for _ in range(4000):
        gap += 1
        if pace.wants_plan(np.array([0.125, 0.125 + 2**-9]), ONE, plan_seconds=2**-10):
            pace.planned(acted=False)
            gaps.append(gap)
            gap = 0
    assert gaps[:3] == [10, 20, 40]
    assert set(gaps[2:]) == {int(WORTH * MOST_PATIENT)}


def test_a_plan_that_changes_sizes_after_others_did_not_is_followed_by_some_patience():
    pace, gaps, gap = settled(), [], 0
    while len(gaps) < 6:
        gap += 1
        if pace.wants_plan(np.array([0.125, 0.125 + 2**-9]), ONE, plan_seconds=2**-10):
            pace.planned(acted=len(gaps) >= 2)
            gaps.append(gap)
            gap = 0
    assert gaps == [10, 20, 40, 20, 10, 10]


def test_exchanges_are_rarer_where_plans_gain_little():
    def settled_after(gain):
        pace = settled()
        for _ in range(20):
            pace.planned(acted=True, gain=gain)
        for _ in range(20):
            pace.wants_plan(np.array([0.01, 0.01]), ONE, 0.001, 0.001)
        return pace.every

    # An hour of drift to and fro is worth less looking than bursts: the square root of 0.32 / 0.02, in iterations.
    assert settled_after(0.32) < settled_after(0.08) < settled_after(0.02) <= 4 * settled_after(0.32) + 2


def test_exchanges_become_rarer_the_longer_the_quiet_lasts_up_to_half_a_second():
    pace, gaps = settled(), []
    for _ in range(4000):
        pace.wants_plan(np.array([0.05, 0.05]) * pace.every, ONE * pace.every, plan_seconds=1.0)
        gaps.append(pace.every)
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] in (9, 10), "half a second, by a running mean that comes down from 0.1 s to 0.05"


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("cost", [0.0001, 0.001])
def test_exchanges_are_as_far_apart_as_costs_the_least_by_how_long_it_has_been_quiet(seconds, cost):
    pace, quiet = Pace(), 0.0
    for k in range(500):
        every = pace.every
        pace.wants_plan(np.full(2, seconds * every), ONE * every, plan_seconds=100.0, exchange_seconds=cost)
        quiet += seconds * every if k >= WARM_UP else 0.0
        best = np.sqrt(2 * cost * quiet / GAIN) / seconds
        assert pace.every == pytest.approx(np.clip(best, 1, max(0.5 / seconds, 1)), abs=1)


def test_one_long_iteration_makes_exchanges_no_more_than_twice_as_frequent():
    pace = Pace()
    for k in range(300):
        before = pace.every
        pace.wants_plan(np.full(2, 0.05 if k == 299 else 0.005), ONE, plan_seconds=100.0, exchange_seconds=0.001)
    assert before / 2 <= pace.every < before


def test_a_plan_is_near_before_anything_is_known():
    assert Pace().alert


def test_seconds_of_one_fleet_and_steps_of_another_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        Pace().wants_plan(np.ones(3), ONE, plan_seconds=0.001)


@pytest.mark.parametrize("seconds", [0.4, 3.0])
def test_long_iterations_have_an_exchange_each_however_quiet_they_are(seconds):
    pace = settled()
    for _ in range(200):
        pace.wants_plan(np.array([seconds, seconds]), ONE, plan_seconds=100.0, exchange_seconds=0.1)
    assert pace.every == 1


def test_a_rank_that_turns_slow_is_answered_at_once_whatever_plans_did_not_help_before():
    pace = settled()
    for _ in range(4000):
        if pace.wants_plan(np.array([0.1, 0.105]), ONE, plan_seconds=0.001):
            pace.planned(acted=False)
    assert pace.wants_plan(np.array([0.1, 0.15]), ONE, plan_seconds=0.001)


def test_every_iteration_has_an_exchange_right_after_sizes_have_changed():
    pace = settled()
    for _ in range(300):
        pace.wants_plan(np.array([0.05, 0.052]), ONE, plan_seconds=10.0)
    assert pace.every > 1
    pace.planned(acted=True)
    pace.wants_plan(np.array([0.05, 0.1]), ONE, plan_seconds=10.0)
    assert pace.every == 1


def test_an_exchange_that_costs_more_is_made_less_often():
    gaps = []
    for cost in (0.0003, 0.001, 0.003):
        pace = settled()
        for _ in range(100):
            pace.wants_plan(np.array([0.02, 0.021]), ONE, plan_seconds=10.0, exchange_seconds=cost)
        gaps.append(pace.every)
    assert gaps[0] < gaps[1] < gaps[2]


@pytest.mark.parametrize("seconds", [np.nan, 0.0, -1.0, np.inf])
def test_nonsense_is_not_counted(seconds):
    pace = settled()
    assert not pace.wants_plan(np.array([seconds, seconds]), ONE, plan_seconds=0.001)
    assert not pace.wants_plan(np.array([0.1, seconds]), ONE, plan_seconds=0.001)


def iterations_until_a_plan(pace, seconds, every=1, plan_seconds=2**-7):
    """Iterations until a plan, with an exchange after each so many, of a rank that takes 1/8 s and one slower."""
    done = every
    while not pace.wants_plan(np.array([0.125, seconds]) * every, ONE * every, plan_seconds):
        done += every
    return done


@pytest.mark.parametrize("every", [2, 5, 10])
def test_an_exchange_after_several_iterations_counts_the_waiting_in_all_of_them(every):
    once = iterations_until_a_plan(settled(), 0.125 + 2**-9)
    assert once == 80
    assert iterations_until_a_plan(settled(), 0.125 + 2**-9, every) == once


@pytest.mark.parametrize(("more", "is_news"), [(1.5, False), (2.5, True)])
def test_only_waiting_of_more_than_twice_the_share_that_plans_did_not_help_is_news(more, is_news):
    share = 0.02
    pace, fresh = settled(), settled()
    for _ in range(30):
        iterations_until_a_plan(pace, 0.125 / (1 - 2 * share))
        pace.planned(acted=False)
    slower = 0.125 / (1 - 2 * more * share)
    waited, at_once = (iterations_until_a_plan(each, slower) for each in (pace, fresh))
    assert waited == at_once if is_news else waited > 3 * at_once


def test_a_plan_is_near_from_half_of_the_waiting_that_it_takes():
    pace, alerts, plan = settled(), [], False
    while not plan:
        plan = pace.wants_plan(np.array([0.125, 0.125 + 2**-9]), ONE, plan_seconds=2**-9)
        alerts.append(pace.alert)
    assert alerts == [False] * 10 + [True] * 10


@pytest.mark.parametrize("every", [1, 3])
def test_every_exchange_is_planned_where_the_user_says_how_often(every):
    pace = Pace(every=every)
    assert pace.every == every
    assert all(pace.wants_plan(np.array([0.1, 0.1]), ONE, plan_seconds=1.0) for _ in range(20))
    with pytest.raises(ValueError, match="every must be at least 1 iteration, got 0"):
        Pace(every=0)
