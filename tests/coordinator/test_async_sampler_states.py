"""What a sampler saves, what it refuses, and what it does where nothing is said."""

import math

import numpy as np
import pytest

from paceline.coordinator.asynchronous import Drawn, EpochSampler


def test_the_state_of_a_sampler_is_whole_numbers_whatever_it_has_done():
    sampler = EpochSampler(4, seed=1)
    order = np.random.default_rng((1, 0)).permutation(4).tolist()
    fresh = {"size": [4, 1, -1], "place": [0, 0, 0]}
    none = {name: [] for name in ("returned_rows", "returned_epochs", "applied_epochs", "applied_counts")}
    assert {name: value.tolist() for name, value in sampler.state_dict().items()} == {**fresh, **none}
    assert {value.dtype for value in sampler.state_dict().values()} == {np.dtype(np.int64)}
    held, back, used = sampler.draw(2), sampler.draw(1), sampler.draw(1)
    sampler.give_back(back)
    sampler.apply(used)
    state = sampler.state_dict([held])
    assert {name: value.tolist() for name, value in state.items()} == {
        "size": [4, 1, -1],
        "place": [1, 0, 1],
        "returned_rows": [order[2], *order[:2]],
        "returned_epochs": [0, 0, 0],
        "applied_epochs": [0],
        "applied_counts": [1],
    }
    assert {value.dtype for value in state.values()} == {np.dtype(np.int64)}
    assert EpochSampler(4, epochs=7).state_dict()["size"].tolist() == [4, 0, 7]


def test_an_earlier_state_takes_back_the_epochs_that_were_applied_since():
    sampler = EpochSampler(3, epochs=4)
    start = sampler.state_dict()
    for _ in range(2):
        sampler.apply(sampler.draw(3))
    second = sampler.state_dict()
    assert sampler.epoch == 2
    sampler.load_state_dict(start)
    assert (sampler.epoch, sampler.applied, sampler.left) == (0, 0, 12)
    sampler.load_state_dict(second)
    assert (sampler.epoch, sampler.applied, sampler.left) == (2, 6, 6)
    sampler.give_back(sampler.draw(2))
    sampler.load_state_dict(second)
    assert sampler.left == 6


def test_a_state_is_a_copy_that_its_sampler_does_not_write_to():
    sampler = EpochSampler(5)
    sampler.give_back(sampler.draw(3))
    state = sampler.state_dict()
    again = EpochSampler(5)
    again.load_state_dict(state)
    wanted = state["returned_rows"].tolist()
    for value in state.values():
        value[:] = 9
    assert again.draw(3).rows.tolist() == wanted


@pytest.mark.parametrize(("drawn", "said"), [(9, 3), (7, 3), (10, 4)])
def test_a_state_with_more_epochs_than_a_sampler_has_is_refused_with_the_epoch_it_came_to(drawn, said):
    sampler = EpochSampler(3)
    for _ in range(drawn):
        sampler.draw(1)
    with pytest.raises(ValueError, match=f"has assigned samples of epoch {said}, and epochs is 2: ask for as many as"):
        EpochSampler(3, epochs=2).load_state_dict(sampler.state_dict())


def test_nothing_said_is_seed_0_no_end_and_steps_of_one_sample():
    sampler = EpochSampler(5)
    assert (sampler.seed, sampler.epochs, sampler.left, sampler.empty, sampler.finished) == (0, None, math.inf, 0, 0)
    assert sampler.draw(5).rows.tolist() == np.random.default_rng((0, 0)).permutation(5).tolist()
    assert len(EpochSampler(5, epochs=1).draw(4)) == 4, "a last step of one sample is one"
    assert [len(EpochSampler(5, epochs=1).draw(3, least)) for least in (1, 2, 3, 4)] == [3, 3, 5, 5]
    assert [len(EpochSampler(5, epochs=1).draw(4, least)) for least in (1, 2)] == [4, 5]


def test_the_smallest_sampler_holds_one_sample_and_one_epoch():
    sampler = EpochSampler(1, epochs=1)
    assert sampler.left == 1
    drawn = sampler.draw(1)
    assert (drawn.rows.tolist(), drawn.epochs.tolist(), sampler.empty, sampler.finished) == ([0], [0], True, False)
    sampler.apply(drawn)
    assert (sampler.finished, sampler.epoch, len(sampler.draw(1))) == (True, 1, 0)


def test_a_draw_of_both_kinds_is_one_piece_of_whole_numbers():
    sampler = EpochSampler(4, epochs=2)
    sampler.give_back(sampler.draw(1))
    sampler.give_back(sampler.draw(3).first(2))
    for count, epochs in ((5, [0, 0, 0, 1, 1]), (9, [1, 1]), (1, [])):
        drawn = sampler.draw(count)
        assert drawn.epochs.tolist() == epochs
        assert (drawn.rows.dtype, drawn.epochs.dtype) == (np.int64, np.int64)


def test_the_first_samples_and_those_after_them_are_all():
    drawn = Drawn(np.array([5, 6, 7]), np.array([0, 0, 1]))
    for count in range(5):
        first, after = drawn.first(count), drawn.after(count)
        assert [len(first), len(after)] == [min(count, 3), max(3 - count, 0)]
        assert [*first.rows, *after.rows] == [5, 6, 7]
        assert [*first.epochs, *after.epochs] == [0, 0, 1]
