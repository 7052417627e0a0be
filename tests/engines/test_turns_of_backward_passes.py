"""Which batch stands for a backward pass through several, which gradients wait, and how many passes are remembered."""

from types import SimpleNamespace

import pytest
import torch
from lone_gradients import Rank, turn_of

from paceline.torch.weighting import graph
from paceline.torch.weighting.graph import Pass, behind, watch
from paceline.torch.weighting.waiting_gradients import TWO_BATCHES


@pytest.mark.parametrize("known", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("shares", [(0.25, 0.5), (0.5, 0.5)])
@pytest.mark.parametrize("weights_loss", [True, False])
def test_the_first_batch_of_the_loader_stands_for_all_and_one_of_another_weight_is_said(known, shares, weights_loss):
    turns = [turn_of(share, samples=4 + k, known=one) for k, (share, one) in enumerate(zip(shares, known, strict=True))]
    rank = Rank(weights_loss=weights_loss)
    first = 1 if known == (False, True) else 0
    assert rank.backward(turns, 1.0) == shares[first]
    assert rank.ledger.turn is turns[first]
    sentence = TWO_BATCHES.format(samples=4 + first, others=5 - first)
    assert rank.said == [("backward", sentence)] * (weights_loss and shares[0] != shares[1])


def test_one_batch_in_two_passes_is_one_and_two_are_refused_where_terms_are_counted():
    rank, turn = Rank(adds_parts=True), turn_of(0.25)
    assert rank.backward([turn, turn], 1.0) == 0.25
    with pytest.raises(RuntimeError, match="one backward pass covers two batches, whose loss terms would not count"):
        Rank(adds_parts=True).backward([turn, turn_of(0.25)], 1.0)
    assert rank.said == []


@pytest.mark.parametrize("summed", [False, True])
def test_a_step_of_counted_terms_has_no_more_micro_batches_than_the_loop_divides_by(summed):
    rank, turns = Rank(adds_parts=True, micro_batches=2.0), [turn_of(3.0) for _ in range(3)]
    for turn in turns[:2]:
        rank.backward(turn, 1.0, sums=summed, divides=summed)
    with pytest.raises(RuntimeError, match="3 micro-batches were summed before a step, more than accumulate=2 says"):
        rank.backward(turns[2], 1.0)


def test_after_gradients_were_dropped_a_batch_without_terms_has_no_weight():
    rank = Rank(adds_parts=True)
    assert rank.backward(turn_of(4.0), 1.0) == 4.0
    assert rank.backward(turn_of(0.0), 1.0) == 4.0, "those before keep theirs"
    rank.zero(to_none=True)
    assert rank.backward(turn_of(0.0), 1.0) == 0.0


def test_gradients_wait_until_they_are_summed_or_dropped_zeros_of_a_batch_without_terms_included():
    rank = Rank()
    assert (rank.ledger.waits, rank.ledger.unsummed) == (False, False)
    rank.backward(turn_of(0.25), 1.0)
    assert rank.ledger.waits
    rank.zero(to_none=False)
    assert (rank.ledger.waits, rank.ledger.unsummed) == (False, True)
    rank.backward(turn_of(0.0), 1.0)
    assert rank.ledger.waits, "zeros as the pass has left them"
    rank.backward(turn_of(0.25), 1.0, sums=True)
    assert (rank.ledger.waits, rank.gradient() != 0) == (False, True)


def test_a_model_trains_while_any_parameter_does():
    rank = Rank(lengths=(2, 1))
    found = [rank.ledger.trains]
    for one in rank.model:
        one.requires_grad_(False)
        found.append(rank.ledger.trains)
    assert found == [True, True, False]


class Owner:
    def __init__(self):
        self.begun = []
        self.backward_begins, self.backward_ended = self.begun.append, lambda: None


def passed(owner, through=()):
    """A forward pass of one node, and what it made."""
    one = Pass(owner, SimpleNamespace(through=through))
    made = torch.ones(1, requires_grad=True) * 2.0
    one.ends()
    return one, made


@pytest.fixture
def owners():
    found = [Owner(), Owner()]
    stops = [watch(one) for one in found]
    yield found, stops
    for stop in stops:
        stop()


def test_a_pass_is_not_scaled_nor_doubted_nor_of_a_batch_at_first(owners):
    (owner, _), _ = owners
    one, made = passed(owner)
    assert (one.scaled, one.doubt, one.turn, one.owner()) == (False, (), None, owner)
    assert (one.end - one.begin, behind([made]), behind([made * 2.0])) == (1, [one], [one])
    assert behind([torch.ones(1, requires_grad=True) * 2.0]) == []


def test_owners_that_no_longer_watch_are_not_told(owners):
    (owner, other), stops = owners
    (one, made), (_, of_other) = passed(owner), passed(other)
    stops[1]()
    torch.autograd.backward(made + of_other, None, None, False, None)
    assert (owner.begun, other.begun) == ([[one]], [])


def test_of_1024_passes_the_older_half_is_forgotten(owners, monkeypatch):
    (owner, _), _ = owners
    monkeypatch.setattr(graph, "_passes", [])  # jobs of tests before may watch still
    monkeypatch.setattr(graph, "_begins", [])
    made = [passed(owner)[0] for _ in range(1024)]
    assert graph._passes == made
    made.append(passed(owner)[0])
    assert (graph._passes, graph._begins) == (made[512:], [one.begin for one in made[512:]])
