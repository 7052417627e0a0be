"""Samples arranged anew, told by hand: which batches belong to a step, and where each sample of it goes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.audit.arrange import (
    arranged,
    as_they_were,
    assigned,
    grouped,
    groups,
    in_one_process,
    mixed,
    moved,
    pool,
    shared,
)
from paceline.audit.tape import DRAWN, Sample, Tape, TapedStep


def steps_of(*delivered):
    return [TapedStep(one if isinstance(one, dict) else {"s": one}, {}, {}) for one in delivered]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivered", "sizes"),
    [
        ([], []),
        ([0, 0], []),
        ([4], [4]),
        ([4, 4], [1, 1, 1, 1]),  # fetched before the first step: each batch stands for itself
        ([1, 1, 1], [1]),
        ([2, 4, 6], [2, 2, 2]),
        ([3, 5, 7], [2, 2, 2]),  # one ahead
        ([4, 6, 8], [2, 2, 2]),  # two ahead
        ([0, 2, 4], [2, 2]),
        ([2, 2, 4, 4, 7], [2, 2, 3]),
        ([1, 3, 5], [1, 2, 2]),
        ([2, 3], [1, 1]),
        ([{}, 1, 2], [1, 1]),
        ([{}, 2, 4], [2, 2]),
        ([1, {"other": 3}, 2], [1, 1]),
    ],
)
def test_batches_belong_to_the_step_that_took_them_whatever_was_fetched_ahead(delivered, sizes):
    found = groups(Tape(0, 1, {}, {}, steps_of(*delivered)), "s")
    ends = np.cumsum([0, *sizes]).tolist()
    assert found == [range(first, end) for first, end in pairwise(ends)]


def test_steps_of_models_that_take_turns_belong_together():
    steps = steps_of(1, 1, 2, 1, 1, 1)
    assert grouped(Tape(0, 1, {}, {}, steps)) == [steps[:2], steps[2:3], steps[3:]]
    assert grouped(Tape(0, 1, {}, {}, [])) == []
    assert grouped(Tape(0, 1, {}, {}, steps_of({}))) == [steps_of({})]


BY_HAND = f"{DRAWN} (4,) []"


@pytest.mark.parametrize(
    ("names", "others", "delivered", "found"),
    [
        (["a", "b", BY_HAND], ["b", "a", BY_HAND], [{BY_HAND: 9}], ["a", "b"]),
        (["a", "b"], ["b"], [{}], ["b"]),
        ([BY_HAND], [BY_HAND], [{BY_HAND: 1}, {BY_HAND: 2}], [BY_HAND]),
        ([BY_HAND], [BY_HAND], [{BY_HAND: 3}, {BY_HAND: 3}], [BY_HAND]),
        ([BY_HAND], [BY_HAND], [{BY_HAND: 1}, {BY_HAND: 1}], []),
        ([BY_HAND], [BY_HAND], [{}], []),
        ([BY_HAND], [BY_HAND], [], []),
        ([BY_HAND], [], [{BY_HAND: 1}], []),
        (["a", BY_HAND], [BY_HAND], [{BY_HAND: 1}], [BY_HAND]),
    ],
)
def test_streams_are_those_that_every_rank_has_and_drawn_ones_only_where_each_step_draws(
    names, others, delivered, found
):
    tapes = [Tape(rank, 2, {name: [] for name in own}) for rank, own in enumerate((names, others))]
    tapes[0].steps = steps_of(*delivered)
    assert shared(tapes) == found


def tapes_of(sizes, micro, counts=lambda rank, number, place: {"x": 1}):
    """Ranks whose batches have these sizes, ``[number][rank]``, so many of them in a step."""
    ends = range(micro, len(sizes) + 1, micro)
    return [
        Tape(
            rank,
            len(sizes[0]),
            {"s": [[Sample(0, counts(rank, n, k)) for k in range(row[rank])] for n, row in enumerate(sizes)]},
            {},
            steps_of(*ends),
        )
        for rank in range(len(sizes[0]))
    ]


def test_samples_are_handed_out_in_their_order():
    assert pool(range(4, 6), [[1, 2], [0, 1]]) == [(0, 4, 0), (1, 4, 0), (1, 4, 1), (1, 5, 0)]
    assert assigned(["a", "b", "c", "d"], [[1, 0], [2, 1]]) == [[["a"], []], [["b", "c"], ["d"]]]
    assert as_they_were("s", range(4, 6), [[1, 2], [0, 1]]) == [
        [[(0, 4, 0)], [(1, 4, 0), (1, 4, 1)]],
        [[], [(1, 5, 0)]],
    ]


def test_steps_of_which_a_rank_lacks_a_batch_are_left_out():
    tapes = tapes_of([[1, 1]] * 6, 2)
    assert len(arranged(tapes, as_they_were)["s"]) == 6
    del tapes[1].streams["s"][5:], tapes[1].steps[:]  # the first rank's steps count
    assert arranged(tapes, as_they_were) == {"s": [[[(0, n, 0)], [(1, n, 0)]] for n in range(4)]}


def test_one_process_gets_the_batches_of_all_ranks_joined_or_in_parts_of_nearly_one_size():
    tapes = tapes_of([[2, 1], [1, 1]], 2)
    first, second = [(0, 0, 0), (0, 0, 1), (1, 0, 0)], [(0, 1, 0), (1, 1, 0)]
    assert arranged(tapes, in_one_process(None)) == {"s": [[first], [second]]}
    whole = [*first, *second]
    assert arranged(tapes, in_one_process(1)) == {"s": [[whole]]}
    assert arranged(tapes, in_one_process(3)) == {"s": [[whole[:2]], [whole[2:4]], [whole[4:]]]}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, False),
        ({"s": [[[(0, 0, 0)], [(1, 0, 0)]], [[(0, 1, 0)], [(1, 1, 1)]]]}, False),
        ({"s": [[[(0, 0, 5)], []]]}, False),
        ({"s": [[[(0, 0, 0)], [(0, 0, 1)]]]}, True),
        ({"s": [[[(0, 0, 0)], [(1, 0, 0)]], [[(0, 0, 1)], [(1, 1, 1)]]]}, True),
        ({"a": [], "s": [[[(1, 0, 0)], [(0, 0, 0)]]]}, True),
    ],
)
def test_a_sample_is_moved_if_it_is_on_another_rank_or_in_another_batch(given_, expected):
    assert moved(given_) is expected


@given(st.integers(1, 99), st.integers(1, 3))
@settings(max_examples=8)
def test_small_samples_lead_in_every_other_step_and_chance_decides_in_the_others(seed, micro):
    chance = np.random.default_rng(seed)
    sizes = chance.integers(2, 6, (1, 2)).repeat(4 * micro, axis=0).tolist()
    amounts = {}

    def counts(rank, number, place):
        more = amounts.setdefault((rank, number, place), int(chance.integers(0, 10**6)))
        return {"x": more // 3, "y": more - more // 3}

    tapes = tapes_of(sizes, micro, counts)
    rows = arranged(tapes, mixed(tapes, seed))["s"]
    for step in range(4):
        numbers = range(step * micro, (step + 1) * micro)
        found = [ref for number in numbers for refs in rows[number] for ref in refs]
        own = pool(numbers, sizes[:micro])
        if step % 2 == 0:
            assert found == sorted(own, key=lambda ref: amounts[ref])
        else:
            drawn = np.random.default_rng([seed, numbers[0]]).permutation(len(own))
            assert found == [own[place] for place in drawn]


def test_samples_are_exchanged_among_batches_of_one_size_and_by_a_draw_of_their_own():
    sizes = [[1, 3], [2, 1], [3, 1], [1, 2]]
    tapes = tapes_of(sizes, 4)
    rows = arranged(tapes, mixed(tapes, 5))["s"]
    for numbers in ((0, 2), (1, 3)):
        own = [ref for number in numbers for ref in pool(range(number, number + 1), [sizes[number]])]
        drawn = np.random.default_rng([5, numbers[0]]).permutation(len(own))  # all are equally large
        assert [ref for number in numbers for refs in rows[number] for ref in refs] == [own[place] for place in drawn]
    assert [[len(refs) for refs in row] for row in rows] == sizes
    tapes = tapes_of([[1]] * 9, 9)
    rows = arranged(tapes, mixed(tapes, 5))["s"]
    assert [number for ((_, number, _),) in (row[0] for row in rows)] == np.random.default_rng([5, 0]).permutation(
        9
    ).tolist()
