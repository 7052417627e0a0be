"""Gradients that wait to be summed: when they are there, and which are refused because no weight is right."""

import math

import pytest
import torch
from lone_gradients import Rank, turn_of

from paceline.torch.weighting.waiting_gradients import WaitingGradients


@pytest.mark.parametrize(("own", "most"), [(1, 1.0), (2, 1.0), (2, 2.0), (3, 2.0), (4, math.inf)])
@pytest.mark.parametrize("again", [False, True])
def test_no_more_micro_batches_are_summed_in_a_step_than_the_loop_divides_by(own, most, again):
    rank, turns = Rank(adds_parts=True, micro_batches=most), [turn_of(3.0) for _ in range(own)]
    for turn in turns[:-1][: int(min(most, own))]:
        rank.backward(turn, 1.0)
        rank.backward(turn, 1.0)
    if own > most:
        with pytest.raises(
            RuntimeError, match=f"^{own} micro-batches were summed before a step, more than accumulate={most:g}"
        ):
            rank.backward(turns[-1], 1.0)
        return
    rank.backward(turns[-1], 1.0, sums=True, divides=True)
    if again:
        for turn in turns:
            rank.backward(turn, 1.0)
        rank.backward(turns[-1], 1.0, sums=True, divides=True)
    elif own == most:
        with pytest.raises(RuntimeError, match=f"^{own + 1} micro-batches were summed before a step"):
            rank.backward(turn_of(3.0), 1.0)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("adds_parts", [False, True])
def test_gradients_that_were_dropped_in_part_are_refused_where_terms_are_counted(adds_parts, changed):
    rank = Rank(adds_parts=adds_parts)
    rank.backward(turn_of(3.0), 1.0)
    if changed:
        rank.model[1].grad.mul_(0.5)  # clipped
    rank.model[0].grad = None
    if adds_parts:
        with pytest.raises(
            RuntimeError, match="some of the gradients that wait to be summed were dropped, and others not"
        ):
            rank.backward(turn_of(3.0), 1.0)
    else:
        rank.backward(turn_of(3.0), 1.0)


def test_gradients_that_were_clipped_are_there_still_and_those_of_new_zeros_are_not():
    rank = Rank(adds_parts=True)
    rank.backward(turn_of(3.0), 1.0)
    for one in rank.model:
        one.grad.mul_(0.5)
    rank.backward(turn_of(5.0), 1.0, sums=True, divides=True)
    assert rank.gradient() == pytest.approx((3 * 0.5 + 5 * 1.0) / 8)
    rank.zero(to_none=True)
    rank.backward(turn_of(3.0), 1.0)
    for one in rank.model:
        one.grad = torch.zeros_like(one)
    rank.backward(turn_of(5.0), 1.0, sums=True, divides=True)
    assert rank.gradient() == 1.0


def test_zeros_that_a_batch_without_terms_has_left_count_as_there():
    rank = Rank(adds_parts=True)
    rank.backward(turn_of(0.0), math.nan)
    assert rank.ledger.waits
    assert rank.ledger.part == 0.0
    rank.backward(turn_of(4.0), 2.0)
    assert rank.ledger.part == 4.0
    rank.zero(to_none=True)
    assert not rank.ledger.waits


@pytest.mark.parametrize("adds_parts", [False, True])
def test_the_part_of_a_step_is_that_of_its_last_micro_batch_or_of_all_whose_terms_count(adds_parts):
    rank, first, second = Rank(adds_parts=adds_parts), turn_of(0.5, 3.0), turn_of(0.25, 5.0)
    assert rank.ledger.part == pytest.approx(0.0 if adds_parts else math.nan, nan_ok=True)
    for turn, part in ((first, 3.0), (first, 3.0), (second, 8.0), (first, 8.0)):
        rank.backward(turn, 1.0)
        assert rank.ledger.part == (part if adds_parts else turn.part)
        assert rank.ledger.turn is (second if adds_parts and part == 8.0 else turn)
    rank.ledger.summed()
    assert (rank.ledger.turn, rank.ledger.unsummed) == (None, False)


def test_gradients_wait_from_a_backward_pass_until_they_are_summed_or_dropped():
    for drops in (True, False):
        rank = Rank()
        assert not rank.ledger.waits
        rank.backward(turn_of(0.5), 1.0)
        assert (rank.ledger.unsummed, rank.ledger.waits) == (True, True)
        rank.zero(to_none=drops)
        assert (rank.ledger.unsummed, rank.ledger.waits) == (True, False)
        rank.backward(turn_of(0.5), 1.0, sums=True)
        assert (rank.ledger.unsummed, rank.ledger.waits) == (False, False)


@pytest.mark.parametrize("weights_loss", [False, True])
@pytest.mark.parametrize("adds_parts", [False, True])
def test_one_backward_pass_over_two_batches_counts_as_the_first_that_the_loader_handed_out(weights_loss, adds_parts):
    foreign, own, alike = turn_of(0.25, samples=2, known=False), turn_of(0.5), turn_of(0.5, samples=7)
    rank = Rank(weights_loss=weights_loss, adds_parts=adds_parts)
    if adds_parts:
        with pytest.raises(
            RuntimeError, match="one backward pass covers two batches, whose loss terms would not count"
        ):
            rank.backward([foreign, own], 1.0)
        assert rank.ledger.begins([foreign]) == 0.25
        return
    assert rank.backward([own, alike], 1.0, sums=True) == 0.5
    assert rank.said == []
    assert rank.backward([foreign, own, alike], 1.0) == 0.5
    assert rank.ledger.turn is own
    assert [about for about, _ in rank.said] == ["backward"] * weights_loss
    assert all("batches of 4 and of 2 samples" in sentence for _, sentence in rank.said)
    assert Rank().backward([foreign, turn_of(0.125, samples=1, known=False)], 1.0) == 0.25


def test_a_model_trains_while_any_of_its_parameters_gets_gradients():
    rank = Rank()
    rank.model[0].requires_grad_(False)
    assert rank.ledger.trains
    rank.model[1].requires_grad_(False)
    assert not rank.ledger.trains
    frozen = WaitingGradients(rank.model, rank.listener)
    for one in rank.model:
        one.requires_grad_(True)
    assert not frozen.trains, "as it was when it was attached"
