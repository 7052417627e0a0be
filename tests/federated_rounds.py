"""Rounds of federated clients, played for the tests."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, RoundReport

LAWS = settings(max_examples=60, derandomize=True, deadline=None)


fleets = st.lists(
    st.tuples(st.floats(0.5, 5000.0), st.floats(0.0, 30.0)), min_size=1, max_size=12
)  # samples/s and seconds to communicate


def names_of(count):
    return [f"c{i}" for i in range(count)]


def played(balancer, speed, comm, rounds=1, names=None):
    """Let all clients reply for some rounds, and return the plan of the next."""
    names = names or names_of(len(speed))
    for _ in range(rounds):
        plan = balancer.plan(names)
        participating = np.flatnonzero(plan.participating)
        samples = plan.sizes[participating] * plan.local_steps
        report = RoundReport(
            clients=[names[i] for i in participating],
            samples=samples,
            seconds=samples / np.asarray(speed)[participating],
            comm_seconds=np.asarray(comm)[participating],
        )
        balancer.observe(plan, report)
    return balancer.plan(names)


def same(one, other):
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def balancer_of(**options):
    return FederatedBalancer(**{"batch": 32, "local_steps": 5, "min_batch": 1, "max_speed_ratio": 1e9, **options})
