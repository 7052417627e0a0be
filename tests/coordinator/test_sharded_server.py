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
        gradient_P = parameters_P - 0.01 * len(pulled.assigned) + pulled.assigned.rows.mean() / 500
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
def test_several_servers_equal_one(name, turns, servers):
    one, several = Split(name, 1), Split(name, servers)
    for worker in turns:
        first, second = one.turn(worker), several.turn(worker)
        assert (first and first.why) == (second and second.why)
    assert (one.server.parameters == several.server.parameters).all()
    assert {shard.version for shard in several.shards} == {one.server.version}
    bound = several.server.scheme.bound
    assert bound is None or several.server.ledger.largest_staleness <= bound


def test_flaw_in_one_part_refuses_all():
    split = Split("asp", 3)
    split.turn("a")
    before = split.server.parameters
    verdict = split.turn("a", spoil=6)
    assert verdict.outcome is Outcome.REFUSED
    assert "1 of its 2 numbers is NaN" in verdict.reason
    assert (split.server.parameters == before).all()
    assert {shard.version for shard in split.shards} == {0}


@pytest.mark.parametrize("name", ["dc-asgd-c", "dc-asgd-a"])
def test_overflow_on_one_shard_leaves_no_trace(name):
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


def test_incomplete_gradient_is_refused():
    split = Split("asp", 2)
    pulled = split.server.pull("a")
    split.shards[0].hold("a", pulled.stamp.ticket, np.zeros(4))
    assert "has not come to every server" in split.server.push("a", pulled.stamp, np.empty(0)).reason


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
def test_resumes_on_any_number_of_servers(name, turns, killed, servers):
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
