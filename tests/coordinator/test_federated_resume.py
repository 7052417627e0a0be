"""A federated balancer that was saved goes on exactly, with any predictor."""

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, fleets, names_of, played, same
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, RoundReport
from paceline.predictors import EWMA, BatchTime, LastValue, LocalLevel, Mixture

REPLIES = st.sampled_from(["time", "time", "no time", "silent", "error", "out of memory", "absurd"])


def answered(balancer, names, said):
    """Play a round in which each client answers as it is told to, and return its plan."""
    plan = balancer.plan(names)
    told = [i for i in range(len(names)) if plan.participating[i] and said[i] != "silent"]
    samples = plan.sizes[told] * plan.local_steps
    speeds = {"no time": np.nan, "absurd": 1e12}
    report = RoundReport(
        clients=[names[i] for i in told],
        samples=samples,
        seconds=[n / speeds.get(said[i], 40.0 * (i + 1)) for i, n in zip(told, samples, strict=True)],
        comm_seconds=[0.1 * i for i in told],
        failed=[said[i] == "error" for i in told],
        out_of_memory=[said[i] == "out of memory" for i in told],
        waited=20.0,
    )
    balancer.observe(plan, report)
    return plan


def alike(one, other):
    arrays = [(getattr(one, name), getattr(other, name)) for name in vars(one) if name != "clients"]
    words = [(plan.summary, *map(plan.why, plan.clients)) for plan in (one, other)]
    return words[0] == words[1] and all(same(np.asarray(mine), np.asarray(theirs)) for mine, theirs in arrays)


@pytest.mark.slow
@LAWS
@given(
    st.lists(st.lists(REPLIES, min_size=4, max_size=4), max_size=12),
    st.lists(st.lists(REPLIES, min_size=4, max_size=4), max_size=4),
    st.sampled_from([None, 4.0, 0.5]),
)
def test_resumes_exactly(before, after, deadline):
    names = names_of(4)
    first, second = (FederatedBalancer(batch=32, local_steps=5, deadline=deadline, try_again=2) for _ in range(2))
    first.join(names[:3], devices=["phone", "tablet", "phone"], data=[9.0, 50.0, 400.0], memory=[64.0, 64.0, 20.0])
    for said in before:
        answered(first, names, said)
    second.load_state_dict(first.state_dict())
    for said in after:
        assert alike(answered(first, names, said), answered(second, names, said))
    assert alike(first.plan([*names, "stranger"]), second.plan([*names, "stranger"]))


def bare(predictor):
    """Return the predictor with nothing but the contract: no workers join or leave at once."""

    class Bare:
        def __init__(self):
            self.inner = predictor

        workers = property(lambda self: self.inner.workers)
        covariate_names = ()

    for name in ("fit", "reset", "join", "leave", "rename", "observe", "predict", "state_dict", "load_state_dict"):
        setattr(Bare, name, lambda self, *given, _name=name, **named: getattr(self.inner, _name)(*given, **named))
    return Bare()


@pytest.mark.slow
@LAWS
@given(
    fleets,
    st.sampled_from([EWMA(), LastValue(), Mixture(["last-value", "ewma"]), BatchTime(), bare(LocalLevel())]),
    st.integers(0, 3),
)
def test_any_predictor_resumes_exactly(fleet, predictor, rounds):
    speed, comm = np.array(fleet).T
    first, second = (balancer_of(predictor=predictor) for _ in range(2))
    first.join(["gone"], devices=["old"])
    played(first, speed, comm, rounds=rounds)
    second.load_state_dict(first.state_dict())
    for balancer in (first, second):
        balancer.leave("gone") if "gone" in balancer else None
        balancer.join(["late"], devices=["phone"])
        played(balancer, speed, comm, rounds=2)
    ends = [balancer.plan([*names_of(len(fleet)), "late"]) for balancer in (first, second)]
    assert np.array_equal(ends[0].sizes, ends[1].sizes)
    assert np.array_equal(ends[0].seconds, ends[1].seconds)
    assert ends[0].speed[:-1] == pytest.approx(speed, rel=0.05)
    assert ends[0].comm_seconds[:-1] == pytest.approx(np.maximum(comm, 1e-6), rel=0.05)


def test_incomplete_state_changes_nothing():
    balancer = balancer_of()
    played(balancer, [10.0, 20.0], [0.0] * 2)
    state = balancer.state_dict()
    del state["comm/rows/doubt"]
    with pytest.raises(ValueError, match="the state of LocalLevel's workers must hold"):
        balancer.load_state_dict(state)
    assert balancer.plan(names_of(2)).sizes.tolist() == [21, 43]
