"""Messages that ranks tell each other, refusals and states, against stand-ins for the network."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from paceline.torch.agreement import agree, facts_of
from paceline.torch.exchange import Exchange, LostRankError
from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.refusal import Refusal
from paceline.torch.weighting.scaling import Scaling
from paceline.torch.weighting.weighting import Weighting


def exchange_of(rank, ranks, timeout=None):
    """An exchange of this rank, without a network."""
    made = Exchange.__new__(Exchange)
    made.group, made.rank, made.world_size, made.timeout, made._first = "g", rank, ranks, timeout, 5
    return made


@pytest.fixture
def broadcasts(monkeypatch):
    """What the first rank sends comes to the others in the same order."""
    sent = []

    def broadcast(tensor, src, group):
        assert (src, group) == (5, "g")
        if sent and sent[0][0] == "to come":
            tensor[:] = sent.pop(0)[1]
        else:
            sent.append(("sent", tensor.clone()))

    monkeypatch.setattr(dist, "broadcast", broadcast)
    return sent


def from_first(broadcasts, state, other):
    first = exchange_of(0, 2).from_first(state)
    broadcasts[:] = [("to come", tensor) for _, tensor in broadcasts]
    return first, exchange_of(1, 2).from_first(other)


def test_all_ranks_get_the_arrays_of_the_first_as_they_are_and_objects_are_refused(broadcasts):
    state = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(1.5), "d": np.zeros((0, 2))}
    for found in from_first(broadcasts, state, {"other": np.ones(3)}):
        assert list(found) == list(state)
        for name, array in state.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        exchange_of(0, 2).from_first({"a": np.array([{}], dtype=object)})


@pytest.mark.parametrize("other", ["a", "a longer text"])
@pytest.mark.parametrize("rank", [0, 1])
def test_texts_of_any_length_are_gathered_in_the_order_of_ranks(monkeypatch, rank, other):
    said, own = json.dumps(other).encode(), ["own text"]
    calls = []

    def all_gather(parts, tensor, group):
        message = [len(said)] if not calls else [*said, *[0] * (len(tensor) - len(said))]
        calls.append(group)
        parts[rank][:] = tensor
        parts[1 - rank][:] = torch.tensor(message, dtype=tensor.dtype)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    assert exchange_of(rank, 2).gather(own) == ([own, other] if rank == 0 else [other, own])
    assert calls == ["g", "g"]


@pytest.mark.parametrize(("timeout", "within"), [(None, "the process group's timeout"), (2.5, r"2\.5 s")])
@pytest.mark.parametrize("call", [lambda one: one.gather(1), lambda one: one.from_first({})])
def test_a_rank_that_is_gone_is_said_with_the_time_that_it_was_given(monkeypatch, timeout, within, call):
    def closed(*args, **named):
        raise RuntimeError("closed by peer")

    for name in ("all_gather", "broadcast"):
        monkeypatch.setattr(dist, name, closed)
    with pytest.raises(LostRankError, match=f"rank 1 of 3 lost .* within {within} .* reported: closed by peer"):
        call(exchange_of(1, 3, timeout))


SAID = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))


@given(st.lists(SAID, min_size=1, max_size=3), st.none() | st.lists(st.sampled_from("pqr"), max_size=3), st.data())
def test_ranks_agree_on_every_fact_of_any_of_them_and_on_distinct_names(facts, workers, data):
    ranks = len(facts)
    given_ranks = data.draw(st.sampled_from([list(range(ranks)), [0] * ranks]))
    hosts = data.draw(st.sampled_from([[f"h{rank}" for rank in range(ranks)], ["h"] * ranks]))
    loaded = data.draw(st.sampled_from([ranks, ranks, ranks + 1]))

    def gather(own):
        assert (own["facts"] | facts[0], own["rank"]) == (own["facts"], given_ranks[0])
        same = {"names of the workers": own["facts"]["names of the workers"]}
        told = zip(facts, hosts, given_ranks, strict=True)
        return [{"facts": each | same, "name": host, "rank": rank} for each, host, rank in told]

    exchange = SimpleNamespace(rank=0, world_size=ranks, gather=gather)
    loader = SimpleNamespace(rank=given_ranks[0], world_size=loaded)
    names = hosts if workers is None else workers
    differ = [name for each in facts for name in each if len({other.get(name) for other in facts}) > 1]
    if loaded != ranks:
        said = f"the loader assigns samples to {loaded} ranks, but {ranks} ranks train together"
    elif differ:
        values = ", ".join(f"{each.get(differ[0])} on rank {rank}" for rank, each in enumerate(facts))
        said = f"the ranks must agree on the {differ[0]}, got {values}"
    elif given_ranks != list(range(ranks)):
        said = "each rank must give the loader its own rank"
    elif len(set(names)) < len(names) or len(names) != ranks:
        said = f"workers must be {ranks} different names"
    else:
        assert agree(exchange, loader, facts[0], workers) == tuple(names)
        return
    with pytest.raises(ValueError, match=said):
        agree(exchange, loader, facts[0], workers)


def test_states_of_predictors_are_the_same_only_in_names_types_shapes_and_numbers_whatever_their_order():
    def told(state):
        predictor = SimpleNamespace(state_dict=lambda: state, covariate_names=())
        loader = SimpleNamespace(settings=dict, position=(0, 0, 0))
        facts = facts_of(loader, predictor, None, "mean", None)
        return facts["predictor"].partition(" with state ")[2]

    one, two = np.arange(4.0), np.ones(2)
    states = [{"a": one, "b": two}, {"a": one.reshape(2, 2), "b": two}, {"a": one.astype("f4"), "b": two}]
    states += [{"a": one, "c": two}, {"a": one + 1, "b": two}, {"a": one}]
    assert len({told(state) for state in states}) == len(states)
    assert told({"b": two, "a": one}) == told(states[0])


@pytest.mark.parametrize("ddp", [None, "ddp"])
def test_a_model_alone_refuses_at_once_and_one_of_many_ranks_with_the_sum_that_they_wait_for(ddp):
    refused, error = [], RuntimeError("wrong")
    one = SimpleNamespace(_ddp=ddp, sums=7, refusal=SimpleNamespace(step=0, refuse=refused.append))
    if ddp is None:
        with pytest.raises(RuntimeError, match="wrong"):
            Weighting.refuse(one, error)
    else:
        Weighting.refuse(one, error)
    assert (refused, one.refusal.step) == (([], 0) if ddp is None else ([error], 7))


def test_after_a_backward_pass_that_failed_nothing_is_refused_and_the_account_is_closed():
    ended = []
    one = SimpleNamespace(in_backward=True, refusal=SimpleNamespace(error="old"))
    one._ledger = SimpleNamespace(ends=lambda *total: ended.append(total))
    Weighting.backward_failed(one)
    assert (one.in_backward, one.refusal.error, ended) == (False, None, [()])


def test_a_refusal_reaches_the_other_ranks_of_its_group_in_its_step_alone(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    one, other, foreign = Refusal("g"), Refusal("g"), Refusal("h")
    one.step = foreign.step = 3
    one.refuse(RuntimeError("first"))
    first = one.error
    one.refuse(RuntimeError("second"))
    assert one.error is first
    for each, step in ((other, 2), (foreign, 3), (other, 3)):
        each.step = step
        each.hear()
        assert (each.error is None) == (each is foreign or step == 2)
    assert str(other.error) == "another rank refused this step: second"
    assert (foreign.cause(one._key), foreign.cause()) == ("second", "")
    with pytest.raises(RuntimeError, match="first"):
        one.raise_error()
    one.raise_error()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from([None, False, True])), max_size=3))
def test_a_batch_of_the_loader_must_be_scaled_or_computed_before_all_were(passes):
    scaling = Scaling([], Handed(0, 4), 2)
    scaling._all_before = 5
    made = [
        SimpleNamespace(scaled=scaled, begin=begin, turn=None if known is None else SimpleNamespace(known=known))
        for scaled, begin, known in passes
    ]
    if any(known for *_, known in passes) and not any(scaled or begin < 5 for scaled, begin, _ in passes):
        with pytest.raises(RuntimeError, match=r"needs balance\.scale"):
            scaling.require(made)
    else:
        scaling.require(made)
