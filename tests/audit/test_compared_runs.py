"""Runs compared, against the same numbers computed one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.audit import compare
from paceline.audit.compare import (
    Difference,
    difference,
    ends_differ,
    flat,
    not_a_number,
    of_step,
    ranks_differ,
    relative,
    starts_differ,
)
from paceline.audit.tape import Tape, TapedStep

NAMES = ("a", "bb", "ccc")


def arrays(chance, names=NAMES):
    return {name: chance.normal(size=len(name)) * 10.0 ** chance.integers(-6, 3) for name in names}


def largest(values):
    return max((abs(float(value)) for value in values), default=0.0)


def scaled(expected, found):
    """The distances of arrays, relative to the largest value of each or a thousandth of the largest of all."""
    overall = largest(value for array in expected.values() for value in array)
    distances = {}
    for name in expected:
        if name in found:
            scale = max(largest(expected[name]), overall / 1000) or 1.0
            distances[name] = (
                largest(np.float64(a) - np.float64(b) for a, b in zip(expected[name], found[name], strict=True)) / scale
            )
    return distances


def near(chance, given_, names=NAMES):
    return {name: array + chance.normal(size=array.shape) for name, array in given_.items() if name in names}


def taped(gradients, parameters=None, **facts):
    return TapedStep({}, gradients, {} if parameters is None else parameters, facts)


@given(st.integers(0, 9999), st.booleans())
@settings(max_examples=12)
def test_a_step_deviates_by_its_gradients_and_in_double_by_how_far_parameters_moved(seed, double):
    chance = np.random.default_rng(seed)
    start = arrays(chance, ("a", "b", "elsewhere"))
    one, other = ({name: array + chance.normal(size=array.shape) for name, array in start.items()} for _ in range(2))
    del other["b"]
    one["late"] = other["late"] = np.ones(2)  # it was not there at the start
    one["reshaped"], start["reshaped"], other["reshaped"] = np.ones(3), np.ones(2), np.ones(3)
    if not double:
        one["a"] = one["a"].astype(np.float32)
        start["a"] = start["a"].astype(np.float32)
    own, theirs = arrays(chance, ("a", "b")), None
    theirs = near(chance, own)
    found = of_step(Tape(0, 1, {}, start), taped(own, one), taped(theirs, other))
    expected = scaled(own, theirs)
    if double:
        longest = largest(v for name in ("a", "b", "elsewhere") for v in one[name] - start[name])
        for name in ("a", "elsewhere"):
            gap = largest((one[name] - start[name]) - (other[name] - start[name])) / longest
            expected[name] = max(expected.get(name, 0.0), gap)
    assert found == pytest.approx(expected)


def test_parameters_that_do_not_move_deviate_by_their_own_distance():
    start, still = {"a": np.zeros(1)}, {"a": np.zeros(1)}
    assert of_step(Tape(0, 1, {}, start), taped({}, still), taped({}, {"a": np.full(1, 0.25)})) == {"a": 0.25}
    assert of_step(Tape(0, 1, {}, {}), taped({}, still), taped({}, still)) == {}


@given(st.integers(0, 9999), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=10)
def test_runs_are_compared_rank_by_rank_for_as_many_steps_as_both_have(seed, ranks, ours, theirs):
    chance = np.random.default_rng(seed)

    def tapes(steps, spoilt):
        return [
            Tape(rank, ranks, {}, {}, [taped(near(chance, own) if spoilt else own) for own in grads[:steps]])
            for rank, grads in enumerate(gradients)
        ]

    gradients = [[arrays(chance) for _ in range(3)] for _ in range(ranks)]
    expected, found = tapes(ours, False), tapes(theirs, True)
    worst = [
        {
            name: max(
                scaled(a.steps[k].gradients, b.steps[k].gradients)[name] for a, b in zip(expected, found, strict=True)
            )
            for name in NAMES
        }
        for k in range(min(ours, theirs))
    ]
    told = difference(expected, found)
    assert list(told.steps) == [pytest.approx(one) for one in worst]
    assert told.largest == pytest.approx(max(amount for one in worst for amount in one.values()))
    with pytest.raises(ValueError, match="zip"):
        difference(expected, [*found, found[0]])


@given(st.integers(0, 9999), st.integers(2, 4))
@settings(max_examples=10)
def test_ranks_are_compared_with_the_first(seed, ranks):
    chance = np.random.default_rng(seed)
    gradients, start = [arrays(chance) for _ in range(3)], arrays(chance)
    tapes = [Tape(0, ranks, {}, start, [taped(own, own) for own in gradients])]
    for rank in range(1, ranks):
        steps = [taped(near(chance, own), near(chance, own)) for own in gradients[: 3 if rank > 1 else 2]]
        tapes.append(Tape(rank, ranks, {}, near(chance, start), steps))
    worst = []
    for k in range(3):
        each = [scaled(gradients[k], tape.steps[k].gradients) for tape in tapes[1:] if k < len(tape.steps)]
        worst.append(each)
    told = ranks_differ(tapes).steps
    for found, each in zip(told, worst, strict=True):
        if len(each) == ranks - 1:
            assert found == pytest.approx({name: max(one[name] for one in each) for name in NAMES})
    assert starts_differ(tapes) == pytest.approx(max(max(scaled(start, one.start).values()) for one in tapes[1:]))
    ends = [scaled(gradients[2], tape.steps[-1].parameters) for tape in tapes[1:]]
    assert ends_differ(tapes) == pytest.approx(max(max(one.values()) for one in ends))
    assert (starts_differ(tapes[:1]), ends_differ(tapes[:1]), ranks_differ(tapes[:1]).largest) == (0.0, 0.0, 0.0)


def test_a_rank_with_fewer_steps_is_not_compared_in_the_others():
    steps = [taped({"a": np.ones(1)}), taped({"a": np.ones(1)})]
    tapes = [Tape(0, 2, {}, {}, steps), Tape(1, 2, {}, {}, [taped({"a": np.full(1, 3.0)})])]
    assert ranks_differ(tapes).steps == ({"a": 2.0}, {})
    assert starts_differ(tapes) == 0.0


def test_nothing_deviates_from_nothing():
    assert Difference(()).largest == Difference(({},)).largest == 0.0
    assert Difference(()).begins(0.5) == (0, "")
    assert relative({}, {"a": np.ones(1)}) == {}
    assert compare.size(np.zeros(0)) == 0.0
    assert compare.size(np.array([1.0, -3.0])) == 3.0
    assert compare.apart(np.zeros(0), np.zeros(0)) == 0.0
    assert compare.apart(np.array([1, 5], np.int64), np.array([2, 3], np.int32)) == 2.0
    assert compare.apart(np.array([np.inf]), np.array([np.inf])) == 0.0
    assert compare.apart(np.array([np.inf]), np.array([1.0])) == math.inf


def test_gradients_are_one_vector_of_all_steps_in_double():
    steps = [taped({"b": np.array([1, 2], np.float32), "a": np.array([3.0])}), taped({"b": np.array([4.0])})]
    assert flat(steps).tolist() == [1, 2, 3, 4]
    assert flat(steps).dtype == np.float64
    assert flat([taped({})]).tolist() == []


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_no_numbers_are_infinitely_far_where_they_are(wrong):
    steps = [taped({"a": np.ones(2), "b": np.ones(2)}) for _ in range(3)]
    tapes = [Tape(0, 2, {}, {}, steps), Tape(1, 2, {}, {}, [taped({"a": np.full(1, wrong)})])]
    assert not_a_number(tapes) is None, "the first rank's count"
    steps[1].gradients["b"][1] = wrong
    assert not_a_number(tapes) == Difference(({}, {"b": math.inf}, {}))
    assert not_a_number(tapes).begins(1e9) == (1, "b")
