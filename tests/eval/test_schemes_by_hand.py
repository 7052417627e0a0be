"""Federated schemes on a plan that is given: who is asked, for how many steps, and until when."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.eval.replay.federated import AdaptiveRate, AdaptiveSteps, ClientAssignment, DeadlineDrop, Standard
from paceline.eval.replay.federated.federated_schemes import MOST_STEPS


def planned(speed, comm, upper=None, spread=0.1, batch=8, steps=5):
    count = len(speed)
    plan = SimpleNamespace(
        speed=np.array(speed, float),
        comm_seconds=np.array(comm, float),
        upper=np.full(count, 99) if upper is None else np.array(upper),
        spread=np.full(count, spread),
        sizes=np.arange(count) + 3,
        local_steps=steps,
    )
    return SimpleNamespace(plan=lambda chosen: plan, batch=batch, local_steps=steps), [f"c{k}" for k in range(count)]


CLIENTS = st.lists(st.tuples(st.floats(1.0, 50.0), st.floats(0.0, 9.0), st.integers(-1, 12)), min_size=1, max_size=6)


@given(CLIENTS, st.sampled_from([0.3, 0.5, 0.7, 1.0]))
def test_a_deadline_is_when_a_share_of_the_clients_is_expected_and_later_ones_are_not_asked(clients, share):
    balancer, names = planned(*zip(*clients, strict=True))
    found = DeadlineDrop(share).assign(balancer, names)
    sizes = [min(8, max(upper, 0)) for *_, upper in clients]
    seconds = [5 * size / speed + comm for size, (speed, comm, _) in zip(sizes, clients, strict=True)]
    place = int(np.ceil(share * (len(seconds) - 1) - 1e-12))
    deadline = sorted(seconds)[place]
    assert found.deadline == pytest.approx(1.1 * deadline)
    kept = [size if took <= deadline + 1e-12 else 0 for size, took in zip(sizes, seconds, strict=True)]
    assert found.sizes.tolist() == kept
    assert found.asked.tolist() == [size > 0 for size in kept]
    assert found.steps.tolist() == [5] * len(names)
    assert found.rates.tolist() == [1.0] * len(names)


def test_nobody_is_late_while_nobody_is_known():
    balancer, names = planned([1.0, 50.0], [9.0, 0.0], spread=np.inf)
    found = DeadlineDrop(0.5).assign(balancer, names)
    assert found.sizes.tolist() == Standard().assign(balancer, names).sizes.tolist() == [8, 8]
    assert found.deadline is None or np.isinf(found.deadline)


@given(st.lists(st.tuples(st.floats(1.0, 50.0), st.floats(0.0, 2.0)), min_size=1, max_size=4))
def test_adaptive_steps_sum_to_equal_ones_and_no_move_of_one_would_end_earlier(clients):
    speed, comm = zip(*clients, strict=True)
    balancer, names = planned(speed, comm)
    steps = AdaptiveSteps().assign(balancer, names).steps
    assert steps.sum() == 5 * len(names)
    assert ((steps >= 1) & (steps <= MOST_STEPS * 5)).all()
    ends = [8 * n / s + c for n, s, c in zip(steps, speed, comm, strict=True)]
    for one in range(len(names)):
        for other in range(len(names)):
            if one != other and steps[one] > 1 and steps[other] < MOST_STEPS * 5 and ends[one] == max(ends):
                moved = 8 * (steps[other] + 1) / speed[other] + comm[other]
                assert moved >= max(ends) - 1e-9


def test_rates_follow_batches_and_a_client_with_one_sample_and_one_step_is_asked():
    balancer, names = planned([1.0, 2.0], [0.0, 0.0])
    assert AdaptiveRate().assign(balancer, names).rates.tolist() == [3 / 8, 4 / 8]
    one = ClientAssignment(np.array([1, 0, 1]), np.array([1, 1, 0]), np.ones(3))
    assert one.asked.tolist() == [True, False, False]
