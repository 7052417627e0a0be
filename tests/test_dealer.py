"""Dealing an epoch: what lies in a hand is what its rank will play, in the epoch's order, and no more than it needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.torch.loading.dealer import ROUNDS, Dealer

FLEETS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
AHEAD = st.integers(0, 12)


def reserved(dealer, sizes):
    """Reserve and play batches of these sizes in turn as long as they last; yield before each is played."""
    for sizes_W in sizes:
        if dealer.remaining < sum(sizes_W):
            return
        dealer.reserve(np.array(sizes_W))
        yield np.array(sizes_W)
        dealer.play(np.array(sizes_W))


def started(samples, world_size, epoch=0, **options):
    dealer = Dealer(samples, world_size, **options)
    dealer.start(epoch)
    return dealer


@given(FLEETS, AHEAD, st.integers(1, 300))
def test_while_sizes_stay_batches_are_slices_of_the_epoch_and_each_rank_plays_what_it_held(sizes, ahead, samples):
    dealer = started(samples, len(sizes), ahead=ahead, seed=3)
    order = started(samples, 1, seed=3).deal(np.array([samples]))[0]
    held = [np.arange(0)] * len(sizes)
    for k, sizes_W in enumerate(reserved(dealer, [sizes] * 300)):
        hands = [dealer.hand(rank) for rank in range(len(sizes))]
        assert all(now[: len(before)].tolist() == before.tolist() for now, before in zip(hands, held, strict=True))
        batch = np.concatenate([hand[:size] for hand, size in zip(hands, sizes, strict=True)])
        assert batch.tolist() == order[k * sizes_W.sum() : (k + 1) * sizes_W.sum()].tolist()
        held = [hand[size:] for hand, size in zip(hands, sizes, strict=True)]


@given(st.data(), AHEAD, st.integers(1, 300), st.integers(1, 4))
def test_hands_hold_the_batches_ahead_while_the_deck_lasts_and_then_last_equally_long(data, ahead, samples, world_size):
    dealer = started(samples, world_size, ahead=ahead)
    fleets = st.lists(st.integers(1, 9), min_size=world_size, max_size=world_size)
    sizes = data.draw(st.lists(fleets, min_size=1, max_size=20))
    for sizes_W in reserved(dealer, sizes):
        held_W = np.array([len(dealer.hand(rank)) for rank in range(world_size)])
        if held_W.sum() < dealer.remaining:
            assert (held_W >= (1 + ahead) * sizes_W).all()
        else:
            assert (np.abs(held_W - dealer.remaining * sizes_W / sizes_W.sum()) < 1).all()


@given(FLEETS, AHEAD, st.integers(1, 300))
def test_a_hand_holds_no_more_than_it_loads_ahead_and_the_rounds_that_are_drawn_at_once(sizes, ahead, samples):
    dealer = started(samples, len(sizes), ahead=ahead)
    for sizes_W in reserved(dealer, [sizes] * 300):
        for rank, size in enumerate(sizes_W):
            assert len(dealer.hand(rank)) <= (1 + ahead + min(ROUNDS, ahead)) * size


@given(st.data(), AHEAD, st.integers(1, 4), st.integers(0, 12), st.booleans())
def test_a_resumed_dealer_goes_on_exactly(data, ahead, world_size, batches, shuffle):
    fleets = st.lists(st.integers(0, 9), min_size=world_size, max_size=world_size).filter(any)
    sizes = data.draw(st.lists(fleets, min_size=batches, max_size=30))
    first, second = (Dealer(150, world_size, ahead=ahead, shuffle=shuffle, seed=1) for _ in range(2))
    first.start(2)
    for _ in reserved(first, sizes[:batches]):
        pass
    second.load_state_dict(first.state_dict())
    for one, other in zip(reserved(first, sizes[batches:]), reserved(second, sizes[batches:]), strict=True):
        assert one.tolist() == other.tolist()
        for rank in range(world_size):
            assert first.hand(rank).tolist() == second.hand(rank).tolist()
    assert first.digest == second.digest
    assert (first.epoch, first.remaining) == (second.epoch, second.remaining)


PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(PAIRS, PAIRS)
def test_dealers_have_the_same_digest_where_they_dealt_alike_and_otherwise_not(ones, others):
    def digest(sizes):
        dealer = started(200, 2)
        for sizes_W in sizes:
            dealer.deal(np.array(sizes_W))
        return dealer.digest

    assert (digest(ones) == digest(others)) == (ones == others)


def test_without_a_seed_the_order_is_that_of_seed_0():
    one, other = started(50, 1), started(50, 1, seed=0, shuffle=True, ahead=0)
    assert one.deal(np.array([50]))[0].tolist() == other.deal(np.array([50]))[0].tolist()


def test_before_the_first_epoch_nothing_is_under_way_and_such_a_state_can_be_resumed():
    dealer, resumed = Dealer(10, 2), Dealer(10, 2)
    resumed.load_state_dict(dealer.state_dict())
    for each in (dealer, resumed):
        assert (each.epoch, each.remaining, each.digest) == (0, 0, 0)


class Reversed:
    """A sampler that tells the epoch it was asked for."""

    epoch = None

    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return reversed(self.numbers)

    def __len__(self):
        return len(self.numbers)

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_a_samplers_order_is_that_of_the_epoch_and_survives_a_resume():
    sampler = Reversed([0, 3, 9, 9])
    dealer = started(10, 2, epoch=5, sampler=sampler)
    assert (sampler.epoch, dealer.remaining) == (5, 4)
    assert [batch.tolist() for batch in dealer.deal(np.array([1, 1]))] == [[9], [9]]
    resumed = Dealer(10, 2, sampler=Reversed([1, 2]))
    resumed.load_state_dict(dealer.state_dict())
    assert [batch.tolist() for batch in resumed.deal(np.array([1, 1]))] == [[3], [0]]
    assert started(10, 2, sampler=Reversed([3, 2])).digest != started(10, 2, sampler=Reversed([2, 3])).digest


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([0, 10], "the sampler yields 10, but the dataset has samples 0 to 9"),
        ([-1, 0], "the sampler yields -1, but the dataset has samples 0 to 9"),
        ([4], "the sampler yields 1 samples, too few for 2 ranks"),
        ([], "the sampler yields 0 samples, too few for 2 ranks"),
    ],
)
def test_a_sampler_of_other_samples_or_of_too_few_is_refused(numbers, told):
    with pytest.raises(ValueError, match=told):
        started(10, 2, sampler=Reversed(numbers))
