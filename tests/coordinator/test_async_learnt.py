"""What a server learns of its workers, and what is left of it in a checkpoint."""

import numpy as np
import pytest
from lone_servers import push, server_of

from paceline.coordinator.asynchronous import SCHEMES, SGD, EpochSampler, Scheme, Server, Stamp, scheme
from paceline.coordinator.asynchronous.rules import Bounded, Fresh, Mean, Ranged
from paceline.predictors import LastValue, Report

# -- what is learnt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "counts"),
    [
        ("asp", True),
        ("saps", True),
        (Scheme(name="x", gate=Bounded(9)), False),
        (Scheme(name="x", gate=Ranged(3, 9)), False),
        (Scheme(name="x", gathering=Mean(1)), False),
        (Scheme(name="x", gate=Fresh(), gathering=Mean(1)), False),
    ],
)
def test_a_forecast_is_compared_only_where_nobody_waits_and_each_push_counts(rules, counts):
    for predictor in (LastValue(), None):
        server = server_of(rules, predictor=predictor)
        for worker in "abab":
            push(server, worker, seconds=1.0)
        assert server.calibration.pushes == (4 if counts and predictor else 0)


def test_a_forecast_is_the_one_with_which_the_step_began():
    server = server_of(predictor=LastValue())
    held = server.pull("b")
    for seconds in (1.0, 1.0):
        push(server, "a", seconds=seconds)
    push(server, "b", held, seconds=4.0)
    assert server.calibration.pushes == 3
    assert server.calibration.forecast == pytest.approx(1.0)
    assert server.calibration.actual == pytest.approx(2 / 3)


def test_a_predictor_that_was_used_before_begins_anew():
    predictor, fresh = LastValue(), LastValue()
    predictor.reset(["x", "a", "z"])
    predictor.observe(Report([4.0] * 3, [1.0, 2.0, 4.0]))
    fresh.reset(["a", "b"])
    server = server_of(predictor=predictor)
    assert predictor.workers == ("a", "b")
    assert predictor.predict().speed.tolist() == fresh.predict().speed.tolist()
    push(server, "a", seconds=1.0)
    server_of(predictor=predictor, workers="")
    assert predictor.workers == ()


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_state_names_the_version_and_the_tickets_and_goes_on_far_beyond_them():
    server = server_of()
    for worker in "aab":
        push(server, worker, value=1.0)
    held = server.pull("a")
    state = server.state_dict()
    assert state["place"].tolist() == [3, 4]
    again = server_of()
    stale = again.pull("b")
    again.abandon("b")
    again.load_state_dict(state)
    assert (again.version, again.parameters.tolist(), again.sampler.applied) == (3, [-3.0], 12)
    pulled = again.pull("a")
    assert pulled.stamp == Stamp(3, 4 + 2**40)
    assert pulled.drawn.rows.tolist() == held.drawn.rows.tolist()
    assert "did it push twice?" in push(again, "b", stale).reason, "what was given up before is forgotten"


def test_a_server_that_resumes_loses_what_it_gathered_and_may_begin_every_step_again():
    server = server_of("bsp")
    state = server.state_dict()
    push(server, "a", value=8.0)
    server.pull("b")
    server.load_state_dict(state)
    assert (server.gathered, server.version) == (0, 0)
    assert [member.step for member in server.fleet] == [None, None]
    assert [member.worked_on for member in server.fleet] == [-1, -1]
    for worker in "ab":
        push(server, worker, value=2.0)
    assert (server.version, server.parameters.tolist()) == (1, [-2.0])


def test_a_state_that_lacks_a_part_or_is_of_another_sampler_changes_nothing():
    server, other = server_of(), server_of(samples=999)
    push(server, "a", value=1.0)
    state = server.state_dict()
    for name in ("place", "parameters", "sampler/place"):
        with pytest.raises(
            ValueError, match=rf"the state lacks \['{name}'\]: it is not that of an asynchronous server"
        ):
            server_of().load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(ValueError, match="of 1000 samples"):
        other.load_state_dict(state)
    assert (other.version, other.parameters.tolist(), other.sampler.applied) == (0, [0.0], 0)


def test_a_server_leaves_the_array_that_it_is_given_alone():
    given_ = np.ones(1)
    server = Server(given_, SGD(1.0), scheme("asp", 1), EpochSampler(9), batch=4, workers="a")
    push(server, "a", value=1.0)
    assert (given_.tolist(), server.parameters.tolist()) == ([1.0], [0.0])


def test_what_is_shown_of_a_server_is_a_copy():
    server = server_of("saps-measured", predictor=LastValue())
    assert SCHEMES["saps-measured"](2).bound == server.scheme.bound == 20
    for worker in "ab":
        push(server, worker, seconds=1.0)
    for shown in (server.parameters, server.sizes, server.staleness, server.expected_staleness):
        shown[:] = 77
    assert server.parameters.tolist() == [0.0]
    assert server.sizes.tolist() == [4, 4]
    assert server.staleness.tolist() == [0.0, 0.0]
    assert server.expected_staleness.tolist() == [1.0, 1.0]
    assert [one.worker for one in server.staleness_reports()] == ["a", "b"]
