"""The account of gradients that wait to be summed: one weight is right for whatever a loop has accumulated."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_gradients import Rank, turn_of

STEPS = st.lists(
    st.tuples(st.sampled_from(["wait", "wait", "sum", "sum", "none", "zero"]), st.integers(0, 4)), max_size=9
)
TERMS = (3.0, 0.0, 5.0, 2.0, 7.0)
GRADIENTS = (2.0, math.nan, 0.5, 4.0, 1.0)


@settings(max_examples=80)
@given(STEPS, st.sampled_from(["mean", "sum"]))
def test_every_term_since_the_gradients_were_dropped_counts_the_same_however_often_they_are_summed(steps, loss):
    """Means over no terms are not numbers; a batch may come again alone, and never with another that is new."""
    rank = Rank(loss=loss, adds_parts=True)
    turns = [turn_of(terms if loss == "mean" else 1.0, terms) for terms in TERMS]
    summed, summed_terms, counted = 0.0, 0.0, set()
    waiting, entered = 0.0, set()
    for what, batch in steps:
        if what in ("none", "zero"):
            rank.zero(to_none=what == "none")
            summed, summed_terms, waiting, counted, entered = 0.0, 0.0, 0.0, set(), set()
            continue
        gradient = GRADIENTS[batch] if loss == "mean" or TERMS[batch] else 0.0
        entered.add(batch)
        if summed == 0:  # what leaves no gradient cannot be told from what was dropped
            counted, summed_terms = set(), 0.0
        if entered & counted and not entered <= counted:
            with pytest.raises(RuntimeError, match="gradients of a batch that were summed over the ranks already come"):
                rank.backward(turns[batch], gradient)
            return
        waiting += turns[batch].share * gradient if TERMS[batch] else 0.0
        rank.backward(turns[batch], gradient, sums=what == "sum", divides=True)
        if what == "sum":
            terms = sum(TERMS[one] for one in entered)
            summed, summed_terms = summed + waiting, summed_terms + (0.0 if entered & counted else terms)
            counted, waiting, entered = counted | entered, 0.0, set()
            assert rank.gradient() == pytest.approx(summed / summed_terms if summed_terms else 0.0, rel=1e-6)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), st.integers(1, 5)), min_size=1, max_size=5))
def test_micro_batches_of_other_weights_are_rescaled_so_that_one_weight_is_right_for_their_sum(batches):
    rank = Rank()
    for number, (share, gradient) in enumerate(batches, 1):
        alone = gradient if share else math.nan
        weight = rank.backward(turn_of(share), alone, sums=number == len(batches))
    expected = sum(share * gradient for share, gradient in batches)
    assert rank.gradient() == pytest.approx(expected, rel=1e-5)
    newest = [share for share, _ in batches if share]
    assert weight == (newest[-1] if newest else 0.0)
    assert (rank.ledger.turn, rank.ledger.unsummed, rank.ledger.before) == (None, False, None)


def test_gradients_that_carry_no_weights_are_left_as_they_are():
    rank = Rank(loss="sum", weights_loss=False)
    weights = [rank.backward(turn_of(share), 2.0) for share in (0.5, 0.25, 0.0)]
    assert weights == [0.5, 0.25, 0.25]
    assert rank.gradient() == 6.0


@pytest.mark.parametrize(
    ("whole", "loss", "added"), [(1.0, "mean", True), (0.5, "mean", False), (math.nan, "mean", False)]
)
def test_gradients_that_were_summed_are_not_weighted_again_where_weights_do_not_sum_to_one(whole, loss, added):
    """The weights of all ranks that sum to one keep a sum that all ranks share."""
    rank = Rank(loss=loss)
    rank.backward(turn_of(0.5), 4.0, sums=True)
    rank.backward(turn_of(0.25, whole=whole), 8.0)
    assert rank.gradient() == (10.0 if added else 8.0), "the old ones wait aside"
    rank.backward(turn_of(0.25, whole=whole), 8.0, sums=True)
    assert rank.gradient() == (0.25 * 18.0 if added else 2.0 + 0.25 * 16.0)
    rank.zero(to_none=True)
    rank.backward(turn_of(0.25, whole=whole), 8.0, sums=True)
    assert rank.gradient() == 2.0


def test_sums_that_all_ranks_share_stay_where_a_batch_without_terms_comes_next():
    rank = Rank()
    rank.backward(turn_of(0.5), 4.0, sums=True)
    rank.backward(turn_of(0.0), math.nan)
    rank.backward(turn_of(0.5), 8.0)
    assert rank.gradient() == 10.0


@pytest.mark.parametrize("divides", [False, True])
def test_weights_that_ranks_sum_without_counting_terms_leave_what_was_summed_before(divides):
    rank = Rank()
    rank.backward(turn_of(0.5), 4.0, sums=True, divides=divides)
    rank.backward(turn_of(0.25, whole=0.5), 8.0, sums=True, divides=divides)
    assert rank.gradient() == (4.0 + 8.0 if divides else 2.0 + 2.0)
    rank.backward(turn_of(0.25, whole=0.5), 4.0, sums=True, divides=divides)
    assert rank.gradient() == (4.0 + 8.0 + 4.0 if divides else 2.0 + 2.0 + 1.0)


def test_gradients_some_of_which_are_zero_are_there():
    for whole in (1.0, 0.5):
        rank = Rank(lengths=(2,))
        rank.backward(turn_of(0.5), 4.0, sums=True)
        rank.model[0].grad[0] = 0.0
        rank.backward(turn_of(0.5, whole=whole), 8.0, sums=True)
        assert rank.model[0].grad.tolist() == ([4.0, 5.0] if whole == 1 else [4.0, 6.0])
    rank = Rank(adds_parts=True, lengths=(2,))
    rank.backward(turn_of(2.0), 4.0)
    rank.model[0].grad[0] = 0.0
    assert rank.ledger.waits
    rank.backward(turn_of(6.0), 8.0, sums=True, divides=True)
    assert rank.model[0].grad.tolist() == [6.0, 7.0]


def test_terms_of_a_parameter_that_only_the_older_sum_reached_count_among_all():
    rank = Rank(adds_parts=True)
    rank.backward(turn_of(3.0), 4.0, sums=True, divides=True)
    rank.ledger.begins([turn_of(5.0)])
    rank.model[0].grad = torch.full((2,), 8.0)
    rank.ledger.summed()
    rank.ledger.ends(torch.tensor([5.0], dtype=torch.float64))
    assert [one.grad.tolist() for one in rank.model] == [[6.5, 6.5], [1.5]]


def test_terms_of_a_parameter_that_is_a_single_number_count_among_all():
    rank = Rank(adds_parts=True, lengths=((), 2))
    for terms, gradient in ((3.0, 4.0), (5.0, 8.0)):
        rank.backward(turn_of(terms), gradient, sums=True, divides=True)
    assert rank.gradient() == 6.5


def test_what_was_put_aside_is_dropped_with_what_came_after_it():
    for to_none in (True, False):
        rank = Rank()
        rank.backward(turn_of(0.5), 4.0, sums=True)
        rank.backward(turn_of(0.25, whole=0.5), 8.0)
        rank.zero(to_none=to_none)
        rank.backward(turn_of(0.25, whole=0.5), 8.0, sums=True)
        assert rank.gradient() == 2.0


def test_a_parameter_that_only_the_older_sum_reached_keeps_it():
    rank = Rank()
    rank.backward(turn_of(0.5), 4.0, sums=True)
    rank.ledger.begins([turn_of(0.5, whole=0.5)])
    rank.model[0].grad = torch.full((2,), 6.0)
    rank.model[0].grad.mul_(0.5)
    rank.ledger.summed()
    rank.ledger.ends()
    assert [one.grad.tolist() for one in rank.model] == [[5.0, 5.0], [2.0]]


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("kept", [None, 3.0])
def test_a_mean_over_no_terms_leaves_what_was_there_before(sums, kept):
    rank = Rank()
    if kept is not None:
        rank.backward(turn_of(0.5), kept)
    rank.backward(turn_of(0.0), math.nan, sums=sums)
    assert rank.gradient() == (kept or 0.0) * (0.5 if sums and kept else 1.0)
    assert rank.ledger.before is None


def test_a_sum_over_no_terms_is_zero_by_itself():
    rank = Rank(loss="sum", adds_parts=True)
    rank.ledger.begins([turn_of(0.0)])
    assert rank.ledger.before is None


def test_parameters_without_gradients_stay_so_in_a_pass_without_terms():
    rank = Rank()
    rank.ledger.begins([turn_of(0.0)])
    rank.model[0].grad = torch.full((2,), math.nan)
    rank.ledger.ends()
    assert (rank.model[0].grad.tolist(), rank.model[1].grad) == ([0.0, 0.0], None)


def test_batches_summed_before_the_gradients_were_dropped_are_none_of_the_next_step_whatever_else_left_a_gradient():
    rank = Rank(adds_parts=True, micro_batches=2)
    rank.backward(turn_of(0.5), 1.0, sums=True, divides=True)
    rank.backward(turn_of(0.5), 1.0)
    rank.model[1].grad = None  # the second batch does not reach it
    rank.ledger.ends()
    rank.zero(to_none=True)
    rank.model[1].grad = torch.ones(1)  # of a penalty that is no part of the model's passes
    for _ in range(2):
        rank.backward(turn_of(0.5), 1.0)
    assert rank.ledger.part == 1.0
