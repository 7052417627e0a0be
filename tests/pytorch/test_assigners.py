"""Assigning an epoch: what lies in a buffer is what its rank will take, in order, and no more than it needs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch.buffered import ROUNDS, BufferAssigner
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.order import Order

FLEETS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
AHEAD = st.integers(0, 12)


def made(samples, world_size, *, ahead=0, **order):
    return BufferAssigner(Order(samples, **order), GlobalBatch(world_size, world_size), 0, ahead)


def started(samples, world_size, epoch=0, **options):
    assigner = made(samples, world_size, **options)
    assigner.start(epoch)
    return assigner


def taken(assigner, sizes):
    assigner.reserve(np.array(sizes))
    return assigner.take(np.array(sizes))


def reserved(assigner, sizes):
    """Reserve and take batches of these sizes in turn as long as they last; yield before each is taken."""
    for sizes_W in sizes:
        if assigner.remaining < sum(sizes_W):
            return
        assigner.reserve(np.array(sizes_W))
        yield np.array(sizes_W)
        assigner.take(np.array(sizes_W))


@given(FLEETS, AHEAD, st.integers(1, 300))
def test_constant_sizes_are_slices_per_rank(sizes, ahead, samples):
    assigner = started(samples, len(sizes), ahead=ahead, seed=3)
    order = taken(started(samples, 1, seed=3), [samples])[0]
    held = [np.arange(0)] * len(sizes)
    for k, sizes_W in enumerate(reserved(assigner, [sizes] * 300)):
        buffers = [assigner.buffers[rank] for rank in range(len(sizes))]
        assert all(now[: len(before)].tolist() == before.tolist() for now, before in zip(buffers, held, strict=True))
        batch = np.concatenate([hand[:size] for hand, size in zip(buffers, sizes, strict=True)])
        assert batch.tolist() == order[k * sizes_W.sum() : (k + 1) * sizes_W.sum()].tolist()
        held = [hand[size:] for hand, size in zip(buffers, sizes, strict=True)]


@given(st.data(), AHEAD, st.integers(1, 300), st.integers(1, 4))
def test_buffers_last_equally_long(data, ahead, samples, world_size):
    assigner = started(samples, world_size, ahead=ahead)
    fleets = st.lists(st.integers(1, 9), min_size=world_size, max_size=world_size)
    sizes = data.draw(st.lists(fleets, min_size=1, max_size=20))
    for sizes_W in reserved(assigner, sizes):
        held_W = np.array([len(assigner.buffers[rank]) for rank in range(world_size)])
        if held_W.sum() < assigner.remaining:
            assert (held_W >= (1 + ahead) * sizes_W).all()
        else:
            assert (np.abs(held_W - assigner.remaining * sizes_W / sizes_W.sum()) < 1).all()


@given(FLEETS, AHEAD, st.integers(1, 300))
def test_buffer_holds_no_more_than_ahead(sizes, ahead, samples):
    assigner = started(samples, len(sizes), ahead=ahead)
    for sizes_W in reserved(assigner, [sizes] * 300):
        for rank, size in enumerate(sizes_W):
            assert len(assigner.buffers[rank]) <= (1 + ahead + min(ROUNDS, ahead)) * size


@given(st.data(), AHEAD, st.integers(1, 4), st.integers(0, 12), st.booleans())
def test_a_resumed_assigner_goes_on_exactly(data, ahead, world_size, batches, shuffle):
    fleets = st.lists(st.integers(0, 9), min_size=world_size, max_size=world_size).filter(any)
    sizes = data.draw(st.lists(fleets, min_size=batches, max_size=30))
    first, second = (made(150, world_size, ahead=ahead, shuffle=shuffle, seed=1) for _ in range(2))
    first.start(2)
    for _ in reserved(first, sizes[:batches]):
        pass
    second.load_state_dict(first.state_dict())
    for one, other in zip(reserved(first, sizes[batches:]), reserved(second, sizes[batches:]), strict=True):
        assert one.tolist() == other.tolist()
        for rank in range(world_size):
            assert first.buffers[rank].tolist() == second.buffers[rank].tolist()
    assert first.digest == second.digest
    assert (first.epoch, first.remaining) == (second.epoch, second.remaining)


@settings(max_examples=50)
@given(
    samples=st.integers(4, 200),
    world_size=st.integers(1, 4),
    ahead=st.integers(0, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_sample_is_assigned_exactly_once(samples, world_size, ahead, shuffle, seed):
    assigner = made(samples, world_size, shuffle=shuffle, seed=seed, ahead=ahead)
    rng = np.random.default_rng(seed)
    for epoch in range(2):
        assigner.start(epoch)
        seen = []
        while assigner.remaining:
            total = min(assigner.remaining, int(rng.integers(1, 12)))
            sizes = rng.multinomial(total, rng.dirichlet(np.ones(world_size)))
            batches = taken(assigner, sizes)
            assert [len(batch) for batch in batches] == sizes.tolist()
            seen += batches
        assert np.sort(np.concatenate(seen)).tolist() == list(range(samples))


def test_epochs_differ_in_order_and_seeds_too():
    def order(seed, epoch):
        return Order(50, seed=seed).of(epoch).tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@pytest.mark.parametrize("world_size", [1, 3, 5])
@pytest.mark.parametrize("ahead", [0, 2])
def test_resume_on_other_ranks_covers_rest_once(world_size, ahead):
    before = started(97, 2, epoch=4, seed=1, ahead=ahead)
    seen = [sample for _ in range(3) for batch in taken(before, [7, 3]) for sample in batch]
    after = made(97, world_size, seed=1, ahead=ahead)
    after.load_state_dict(before.state_dict())
    twice = made(97, world_size + 1, seed=1)
    seen += [sample for batch in taken(after, [2] * world_size) for sample in batch]
    twice.load_state_dict(after.state_dict())
    assert twice.remaining == 97 - len(seen)
    sizes = np.diff(np.linspace(0, twice.remaining, world_size + 2).astype(int))
    seen += np.concatenate(taken(twice, sizes)).tolist()
    assert sorted(seen) == list(range(97))


PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(PAIRS, PAIRS)
def test_digest_equal_where_sizes_were_alike(ones, others):
    def digest(sizes):
        assigner = started(200, 2)
        for sizes_W in sizes:
            taken(assigner, sizes_W)
        return assigner.digest

    assert (digest(ones) == digest(others)) == (ones == others)


def test_without_a_seed_the_order_is_that_of_seed_0():
    one, other = started(50, 1), started(50, 1, seed=0, shuffle=True, ahead=0)
    assert taken(one, [50])[0].tolist() == taken(other, [50])[0].tolist()


def test_state_before_first_epoch_resumes():
    assigner, resumed = made(10, 2), made(10, 2)
    resumed.load_state_dict(assigner.state_dict())
    for each in (assigner, resumed):
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


def test_sampler_order_survives_resume():
    sampler = Reversed([0, 3, 9, 9])
    assigner = started(10, 2, epoch=5, sampler=sampler)
    assert (sampler.epoch, assigner.remaining) == (5, 4)
    assert [batch.tolist() for batch in taken(assigner, [1, 1])] == [[9], [9]]
    resumed = made(10, 2, sampler=Reversed([1, 2]))
    resumed.load_state_dict(assigner.state_dict())
    assert [batch.tolist() for batch in taken(resumed, [1, 1])] == [[3], [0]]
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
def test_sampler_of_other_samples_refused(numbers, told):
    with pytest.raises(ValueError, match=told):
        started(10, 2, sampler=Reversed(numbers))
