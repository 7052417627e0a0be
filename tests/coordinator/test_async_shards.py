"""Parameters split over several servers: the same training as on one, and no part staler than the stamp says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Server, scheme
from paceline.coordinator.asynchronous.store import Shard, ShardedStore, in_process, pieces

START = np.linspace(-1.0, 1.0, 7)
WORKERS = "abc"

turns_of_workers = st.lists(st.sampled_from(WORKERS), max_size=60)


class Split:
    """A server with shards in this process, and workers that read and hold their parts."""

    def __init__(self, name, servers):
        rules, optimizer = scheme(name, len(WORKERS)), SGD(0.1, momentum=0.5)
        self.shards = [Shard(part, optimizer, rules.compensation) for part in pieces(START, servers)]
        sizes = [len(part) for part in pieces(START, servers)]
        store = ShardedStore(in_process(self.shards), sizes) if servers > 1 else None
        self.server = Server(START, optimizer, rules, EpochSampler(500, seed=1), batch=4, workers=WORKERS, store=store)
        self.at_work = {}

    def turn(self, worker, spoil=None):
        """Push, or pull; return the verdict, if there is one."""
        if worker not in self.at_work:
            pulled = self.server.pull(worker)
            if pulled is not None:
                self.at_work[worker] = pulled, self.read(worker, pulled)
            return None
        pulled, parameters_P = self.at_work.pop(worker)
        gradient_P = parameters_P - 0.01 * len(pulled.drawn) + pulled.drawn.rows.mean() / 500
        if spoil is not None:
            gradient_P[spoil] = np.nan
        if self.server.store.lend("nobody", -1).size:
            return self.server.push(worker, pulled.stamp, gradient_P)
        for shard, part in zip(self.shards, pieces(gradient_P, len(self.shards)), strict=True):
            shard.hold(worker, pulled.stamp.ticket, part)
        return self.server.push(worker, pulled.stamp, np.empty(0))

    def read(self, worker, pulled):
        if pulled.parameters.size:
            return pulled.parameters.copy()
        for shard in self.shards:
            assert shard.version >= pulled.stamp.version, "a part is older than its stamp"
        return np.concatenate([shard.read(worker, pulled.stamp.ticket) for shard in self.shards])


@pytest.mark.parametrize("name", ["saps", "saps-dc", "asp", "bsp", "k-batch-async", "dyn-sgd", "dc-asgd-c"])
@given(turns=turns_of_workers, servers=st.integers(2, 7))
@settings(max_examples=15)
def test_in_the_same_order_several_servers_do_exactly_what_one_does(name, turns, servers):
    one, several = Split(name, 1), Split(name, servers)
    for worker in turns:
        first, second = one.turn(worker), several.turn(worker)
        assert (first and first.why) == (second and second.why)
    assert (one.server.parameters == several.server.parameters).all()
    assert {shard.version for shard in several.shards} == {one.server.version}
    bound = several.server.scheme.bound
    assert bound is None or several.server.ledger.largest_staleness <= bound


def test_a_flaw_in_one_part_refuses_the_whole_gradient_and_changes_no_part():
    split = Split("asp", 3)
    split.turn("a")
    before = split.server.parameters
    verdict = split.turn("a", spoil=6)
    assert verdict.outcome is Outcome.REFUSED
    assert "1 of its 2 numbers is NaN" in verdict.reason
    assert (split.server.parameters == before).all()
    assert {shard.version for shard in split.shards} == {0}


@pytest.mark.parametrize("name", ["dc-asgd-c", "dc-asgd-a"])
def test_what_overflows_on_one_shard_when_it_is_compensated_leaves_no_trace_on_any(name):
    split, spared = Split(name, 3), Split(name, 1)
    for worker in "abb":
        split.turn(worker)
        spared.turn(worker)
    pulled, _ = split.at_work.pop("a")
    for shard, part in zip(split.shards, pieces(np.array([1.0] * 6 + [1e200]), 3), strict=True):
        shard.hold("a", pulled.stamp.ticket, part)
    assert "overflows" in split.server.push("a", pulled.stamp, np.empty(0)).reason
    spared.server.abandon("a")
    del spared.at_work["a"]
    for worker in "abbaabba":  # DC-ASGD-a remembers the squares of every gradient that was taken, and of no other
        split.turn(worker)
        spared.turn(worker)
    assert (split.server.parameters == spared.server.parameters).all()


def test_a_gradient_that_has_not_come_to_every_server_is_refused():
    split = Split("asp", 2)
    pulled = split.server.pull("a")
    split.shards[0].hold("a", pulled.stamp.ticket, np.zeros(4))
    assert "has not come to every server" in split.server.push("a", pulled.stamp, np.empty(0)).reason


def test_no_shard_keeps_parameters_for_a_step_that_is_over():
    split = Split("dc-asgd-c", 3)
    for worker in "abcab":
        split.turn(worker)
    assert [len(shard._store._lent) for shard in split.shards] == [1, 1, 1]
    split.server.abandon("c")
    assert [len(shard._store._lent) for shard in split.shards] == [0, 0, 0]


def test_a_resumed_part_holds_no_gradient_from_before():
    shard = Shard(np.zeros(2), SGD(0.1), None)
    shard.read("a", 0)
    shard.hold("a", 0, np.ones(2))
    assert not shard.flaw("a", 0)
    shard.load_state_dict({**shard.state_dict(), "place": np.array([7])})
    assert (shard.version, "has not come" in shard.flaw("a", 0)) == (7, True)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1), (1, 3)])
def test_a_state_resumes_on_any_number_of_servers(before, after):
    split, again, straight = Split("asp", before), Split("asp", after), Split("asp", 1)
    for worker in "abcabc" * 3:
        split.turn(worker)
        straight.turn(worker)
    again.server.load_state_dict(split.server.state_dict())
    straight.server.load_state_dict(straight.server.state_dict())
    straight.at_work = {}
    for worker in "aabbcc" * 3:
        again.turn(worker)
        straight.turn(worker)
    assert again.server.version == straight.server.version
    assert (again.server.parameters == straight.server.parameters).all()


NOBODY_WAITS = ["asp", "sa-asgd", "dc-asgd-c", "dc-asgd-a", "saps", "saps-dc", "k-batch-async", "fed-buff"]
"""Whose workers may pull whenever they like, so that the same turns make the same steps after a restart."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NOBODY_WAITS)
@given(
    turns=st.lists(st.sampled_from(WORKERS), min_size=40, max_size=60),
    killed=st.lists(st.integers(0, 30), max_size=4),
    servers=st.lists(st.integers(1, 7), min_size=5, max_size=5),
)
@settings(max_examples=20, deadline=None)
def test_a_training_that_is_killed_and_resumes_is_the_one_that_goes_on(name, turns, killed, servers):
    straight, ours = Split(name, 1), Split(name, servers[0])
    for number, worker in enumerate(turns):
        if number in killed:
            for each in (straight, ours):  # what is at work or gathered would be lost with the process, and is no state
                for other in sorted(each.at_work):
                    each.turn(other)
                while each.server.gathered:
                    each.turn("a")
                for other in sorted(each.at_work):
                    each.turn(other)
        if number in killed and not ours.server.gathered and not straight.server.gathered:
            state, ours = ours.server.state_dict(), Split(name, servers[1 + killed.index(number)])
            ours.server.load_state_dict({key: value.copy() for key, value in state.items()})
        straight.turn(worker)
        ours.turn(worker)
    assert ours.server.version == straight.server.version
    assert (ours.server.parameters == straight.server.parameters).all()
