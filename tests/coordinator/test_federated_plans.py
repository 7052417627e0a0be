"""Laws of a federated plan: sizes, bounds, deadlines, and what it says of them. Axis: W clients."""

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, fleets, names_of, played, same
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.federated import Reason
from paceline.predictors import LocalLevel


@LAWS
@given(fleets)
def test_round_ends_together(fleet):
    speed, comm = np.array(fleet).T
    plan = played(balancer_of(), speed, comm)
    one_more = (plan.sizes + 1) * 5 / speed + comm
    free = plan.sizes < plan.max_sizes
    assert plan.makespan == plan.seconds.max()
    assert plan.speed == pytest.approx(speed, rel=1e-6), "whatever the size"
    assert np.all(one_more[free] >= plan.makespan * (1 - 1e-9) - 1e-5) or np.all(
        plan.sizes[plan.seconds == plan.makespan] == 1
    )


@LAWS
@given(fleets)
def test_sizes_sum_to_the_batch(fleet):
    speed, comm = np.array(fleet).T
    plan = played(balancer_of(largest_multiple=8.0), speed, comm)
    assert plan.sizes.sum() == 32 * len(fleet)
    assert np.all((plan.sizes >= 1) & (plan.sizes <= 256))


@pytest.mark.slow
@LAWS
@given(fleets, st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(fleet, random):
    speed, comm = np.array(fleet).T
    balancer = balancer_of()
    plan = played(balancer, speed, comm)
    order = list(range(len(fleet)))
    random.shuffle(order)
    again = balancer.plan([plan.clients[i] for i in order])
    assert again.makespan == plan.makespan
    distinct = len(set(fleet)) == len(fleet)
    assert not distinct or np.array_equal(np.sort(again.sizes), np.sort(plan.sizes))


@pytest.mark.slow
@LAWS
@given(fleets, st.floats(1.0, 60.0))
def test_plans_keep_the_deadline(fleet, deadline):
    speed, comm = np.array(fleet).T
    plan = played(balancer_of(deadline=deadline), speed, comm, rounds=2)
    in_time = plan.reasons != Reason.TRIED_AGAIN
    assert np.all(plan.seconds[in_time] <= deadline * (1 + 1e-9))
    out = plan.reasons == Reason.LEFT_OUT
    assert np.all(plan.sizes[out] == 0)
    margin = np.exp(0.2)  # one standard deviation of a speed seen once
    assert np.all(margin * 5 / speed[out] + comm[out] > deadline * (1 - 1e-9))


@LAWS
@given(fleets)
def test_faster_client_never_gets_less(fleet):
    speed, _ = np.array(fleet).T
    plan = played(balancer_of(), speed, np.zeros(len(speed)))
    faster = speed[:, None] > speed * (1 + 1e-9)  # logarithms and back may part equal speeds by a rounding
    assert np.all((plan.sizes[:, None] >= plan.sizes) | ~faster)


@pytest.mark.slow
@LAWS
@given(fleets)
def test_planning_is_pure(fleet):
    speed, comm = np.array(fleet).T
    balancer = balancer_of(deadline=20.0)
    played(balancer, speed, comm, rounds=2)
    before = balancer.state_dict()
    plans = [balancer.plan([*names_of(len(fleet)), "stranger"]) for _ in range(2)]
    assert np.array_equal(plans[0].sizes, plans[1].sizes)
    after = balancer.state_dict()
    assert all(same(before[name], after[name]) for name in before)
    assert "stranger" not in balancer


def test_first_round_is_equal():
    balancer = balancer_of(deadline=0.001)
    plan = balancer.plan(["a", "b"])
    assert plan.sizes.tolist() == [32, 32]
    assert plan.why("a") == "a gets 32 samples a step: no client has reported yet."


def test_data_and_memory_bound_a_batch():
    balancer = balancer_of()
    balancer.join(["c0", "c1", "c2", "c3"], data=[10, 1e6, 1e6, 0], memory=[64, 12, 64, 64])
    plan = played(balancer, [100.0, 100.0, 100.0, 100.0], [0.0] * 4)
    assert plan.sizes.tolist() == [10, 12, 64, 0]
    assert "that is all its data" in plan.why("c0")
    assert "its memory holds no more" in plan.why("c1")
    assert "its data or its memory holds no sample" in plan.why("c3")


@pytest.mark.slow
def test_client_left_out_is_tried_again():
    balancer = balancer_of(deadline=10.0, try_again=4)
    speed = np.array([100.0, 100.0, 0.1])
    asked = []
    for _ in range(12):
        plan = played(balancer, speed, [0.0] * 3)
        asked.append(bool(plan.participating[2]))
    assert asked == [False, False, False, False, True] * 2 + [False, False]
    for _ in range(3):
        plan = played(balancer, speed, [0.0] * 3)
    assert "left out for long" in plan.why("c2")


@pytest.mark.slow
def test_noisy_client_is_planned_earlier():
    balancer = balancer_of(deadline=4.0, predictor=LocalLevel(0.2))
    for k in range(30):
        speed = np.array([20.0, 20.0 * (1.5 if k % 2 else 1 / 1.5)])
        plan = played(balancer, speed, [0.5, 0.5])
    assert plan.spread[1] > 0.3 > 0.01 > plan.spread[0]
    assert plan.seconds[1] < 0.8 * plan.seconds[0]
    assert plan.reasons.tolist() == [Reason.DEADLINE] * 2


@pytest.mark.slow
def test_client_tried_again_comes_back():
    balancer = balancer_of(deadline=10.0, try_again=2)
    played(balancer, [100.0, 100.0, 0.1], [0.0] * 3, rounds=1)
    plan = played(balancer, [100.0, 100.0, 100.0], [0.0] * 3, rounds=25)
    assert plan.sizes[2] > 20


def test_summary_names_the_last_client():
    plan = played(balancer_of(), [100.0, 100.0, 100.0], [1.0, 1.0, 20.0])
    assert plan.summary == (
        "3 clients asked, with 1 to 48 samples a step: all replies are expected after 20 s, the median after 3.4 s; "
        "the last is c2, even with the smallest batch."
    )
    assert "the last is" not in played(balancer_of(), [100.0, 50.0], [1.0, 1.0]).summary
