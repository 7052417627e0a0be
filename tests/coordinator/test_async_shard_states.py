"""Shards: their versions, their steps, and a state that is that of one server."""

import math

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
from paceline.coordinator.asynchronous.rules.compensation import Adaptive
from paceline.coordinator.asynchronous.shards import NEVER_CAME, Shard, ShardedStore, in_process, pieces


def test_shards_count_versions_and_take_steps_as_they_are_told():
    shards = [Shard(piece, SGD(1.0), None) for piece in pieces(np.zeros(3), 2)]
    store = ShardedStore(in_process(shards), [2, 1])
    assert [shard.version for shard in shards] == [0, 0]
    for number, scale in enumerate([None, 1.0, 0.5], start=1):
        for shard, size in zip(shards, (2, 1), strict=True):
            assert shard.read("a", number).tolist() == shard.parameters().tolist()
            assert shard.flaw("a", number) == NEVER_CAME
            shard.hold("a", number, np.ones(size))
            assert (shard.flaw("a", number), shard.flaw("a", number + 1)) == ("", NEVER_CAME)
        assert store.flaw("a", number, np.empty(0)) == store.take("a", number, np.empty(0), 4.0) == ""
        store.keep()
        store.step(0.5, 0) if scale is None else store.step(0.5, 0, scale)
        assert [shard.version for shard in shards] == [number, number]
    assert store.parameters.tolist() == [-1.25] * 3
    shards[0].hold("a", 9, np.ones(2))
    shards[0].take("a", 9, 1.0)
    shards[0].step(1.0, 0)
    assert (shards[0].parameters().tolist(), shards[0].version) == ([-2.25] * 2, 4)


def test_a_state_goes_to_shards_part_by_part_and_back_as_one():
    def sharded(count, momentum=0.5):
        shards = [Shard(piece, SGD(1.0, momentum), Adaptive(2.0, 0.5)) for piece in pieces(np.zeros(5), count)]
        return shards, ShardedStore(in_process(shards), [len(piece) for piece in pieces(np.zeros(5), count)])

    state = {
        "parameters": np.arange(5.0),
        "optimiser/momentum": np.arange(5.0) + 10,
        "optimiser/step": np.array(7.0),
        "compensation/a": np.arange(5.0) + 20,
        "place": np.array([4, 9]),
        "sampler/size": np.array([5]),
    }
    for count in (1, 2, 3, 5):
        shards, store = sharded(count)
        store.load_state_dict(state)
        assert store.parameters.tolist() == state["parameters"].tolist()
        assert [shard.version for shard in shards] == [4] * count
        found = store.state_dict()
        assert sorted(found) == ["compensation/a", "optimiser/momentum", "parameters"]
        assert all(found[name].tolist() == state[name].tolist() for name in found)
        with pytest.raises(ValueError, match=r"parameters of the shape \(4,\), these servers \(5,\): build them for"):
            store.load_state_dict({**state, "parameters": np.zeros(4)})
        assert store.parameters.tolist() == state["parameters"].tolist()


def test_what_optimisers_keep_once_for_all_parameters_is_kept_once_for_all_shards():
    class Counting(SGD):
        steps = 0.0

        def state_dict(self):
            return {"steps": np.array([self.steps])}

        def load_state_dict(self, state):
            self.steps = state["steps"].item()

    for count in (1, 2):
        shards = [Shard(piece, Counting(1.0), None) for piece in pieces(np.zeros(5), count)]
        store = ShardedStore(in_process(shards), [len(piece) for piece in pieces(np.zeros(5), count)])
        store.load_state_dict(
            {"parameters": np.zeros(5), "optimiser/steps": np.array([6.0]), "place": np.array([1, 2])}
        )
        assert store.state_dict()["optimiser/steps"].tolist() == [6.0]


def test_a_flaw_is_the_first_that_a_shard_sees():
    rules = scheme("asp", 1)
    shards = [Shard(piece, SGD(1.0), None) for piece in pieces(np.zeros(4), 2)]
    store = ShardedStore(in_process(shards), [2, 2])
    server = Server(np.empty(0), SGD(1.0), rules, EpochSampler(9), batch=1, workers=["a"], store=store)
    for bad, said in ((0, "1 of its 2 numbers is NaN"), (1, "its shape is (3,), that of the parameters (2,)")):
        stamp = server.pull("a").stamp
        for number, shard in enumerate(shards):
            shard.hold("a", stamp.ticket, np.zeros(2))
            if number == bad:
                shard.hold("a", stamp.ticket, np.array([math.nan, 0.0]) if number == 0 else np.zeros(3))
        assert said in server.push("a", stamp, np.empty(0)).reason
        assert (server.version, server.parameters.tolist()) == (0, [0.0] * 4)
