"""A probing run: which samples each of its steps holds, and what is read from its gradients."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.audit.probe import STEPS, Probe, apart, fill, gradients, named, numbers_of, of_two, probing, shown
from paceline.audit.tape import Sample, Tape, TapedStep

PLACES = [(micro, rank, place) for micro in range(3) for rank in range(3) for place in range(4)]


def letter(step, micro, rank, place):
    """Which of x, y and z lies in a place, as the steps are described."""
    if len(step) == 1:
        return step
    if step in ("xy", "xz"):
        return step[place % 2]
    return {"rank": "xyyy"[rank], "micro": "xyyy"[micro]}[step]


def test_a_set_fills_its_own_step_halves_of_mixtures_and_the_first_rank_or_micro_batch():
    assert STEPS == ("own", "x", "y", "z", "xy", "xz", "rank", "micro", "own again")
    for step in STEPS[1:-1]:
        assert [fill(step, *where) for where in PLACES] == ["xyz".index(letter(step, *where)) for where in PLACES]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
@settings(max_examples=20)
def test_the_smallest_the_largest_and_the_middle_one_are_probed(sizes):
    first, last, middle = apart([{"a": a, "b": b} for a, b in sizes])
    order = sorted(range(len(sizes)), key=lambda place: sum(sizes[place]))  # equal ones in their order
    assert (first, last) == (order[0], order[-1])
    rest = order[1:-1]
    assert middle == (rest[len(rest) // 2] if rest else last)


def test_a_balanced_loader_hands_out_the_sets_in_parts_of_the_ranks():
    own = list(range(100, 112))
    found = dict(zip(STEPS, numbers_of(12, 3, [7, 8, 9], own), strict=True))
    assert found["own"] == found["own again"] == own
    assert (found["x"], found["y"], found["z"]) == ([7] * 12, [8] * 12, [9] * 12)
    assert (found["xy"], found["xz"]) == ([7, 8] * 6, [7, 9] * 6)
    assert (found["rank"], found["micro"]) == ([7] * 4 + [8] * 8, [7] * 12)
    assert numbers_of(4, 2, [7, 8, 9], own)[6] == [7, 7, 8, 8]


def tapes_of(ranks=2):
    """Two streams: of words three micro-batches a step, of images one; batches differ in size."""
    tapes = []
    for rank in range(ranks):
        words = [[Sample(k, {"x": 10 * n + k + 100 * rank, "y": 1}) for k in range(2 + n % 2)] for n in range(6)]
        images = [[Sample(k, {"x": 5}) for k in range(4)] for _ in range(2)]
        steps = [TapedStep({"words": 3 * k + 3, "images": k + 1}, {}, {}) for k in range(2)]
        tapes.append(Tape(rank, ranks, {"images": images, "words": words}, {}, steps))
    return tapes


def test_the_largest_stream_is_probed_and_the_others_repeat_their_first_step():
    found, counts = probing(tapes_of())
    assert set(found) == {"words", "images"}
    images = [[(rank, 0, place) for place in range(4)] for rank in (0, 1)]
    assert found["images"] == [images] * len(STEPS)
    # In the order of their sizes: 0 1 10 11 12 20 21 of the first rank, then 100 101 110 ... of the second.
    x, y, z = (0, 0, 0), (1, 2, 1), (1, 0, 0)
    assert counts == ({"x": 0, "y": 1}, {"x": 121, "y": 1}, {"x": 100, "y": 1})
    assert len(found["words"]) == 3 * len(STEPS)
    sizes = [2, 3, 2]
    for number, step in enumerate(STEPS):
        for micro, size in enumerate(sizes):
            row = found["words"][3 * number + micro]
            for rank in (0, 1):
                if step.startswith("own"):
                    assert row[rank] == [(rank, micro, place) for place in range(size)]
                else:
                    letters = [letter(step, micro, rank, place) for place in range(size)]
                    assert row[rank] == [{"x": x, "y": y, "z": z}[one] for one in letters]


def taped(delivered, values):
    return TapedStep(delivered, {"w": np.array(values, np.float32)}, {})


def test_gradients_are_those_of_the_steps_that_took_the_batches_meant_for_them():
    steps = [taped({"s": 3, "t": 1}, [1, 2]), taped({"s": 3, "t": 1}, [3]), taped({"s": 5, "t": 1}, [4])]
    steps += [taped({"s": 7, "t": 1}, [5]), taped({"s": 8, "t": 2}, [6])]
    tape = Tape(0, 1, {}, {}, steps)

    def found(names, expected):
        vectors = gradients(tape, names, expected)
        return vectors and {name: vector.tolist() for name, vector in vectors.items()}

    three = {"a": [1, 2, 3], "b": [4], "c": [5]}
    assert found("abc", {"s": 2}) == found("abc", {}) == found("abc", {"s": 2, "t": 0}) == three
    assert found("ab", {"s": 2}) == {"a": [1, 2, 3], "b": [4]}
    assert found("a", {"s": 9}) == {"a": [1, 2, 3]}
    assert found("abcd", {}) == {**three, "d": [6]}
    for names, expected in (("abcd", {"s": 2}), ("abcde", {}), ("abc", {"s": 3}), ("abc", {"s": 2, "t": 1})):
        assert found(names, expected) is None


@given(
    st.integers(0, 999),
    st.lists(st.floats(0.1, 2), min_size=8, max_size=8),
    st.sampled_from([[[4, 4]], [[3, 5], [2, 7]], [[4], [4], [4]], [[2, 1]], [[1]]]),
)
@settings(max_examples=12)
def test_shares_weights_and_what_is_left_are_read_from_gradients(seed, factors, sizes):
    chance = np.random.default_rng(seed)
    (x, y, z, over), own = np.linalg.qr(chance.normal(size=(7, 4)))[0].T, chance.normal(size=7)
    a, b, c, d, e, f, g, h = factors
    vectors = {"own": own, "own again": own.copy(), "x": x, "y": 2 * y, "z": z}
    vectors["own again"][3] += 0.25 * np.abs(own).max()
    vectors |= {"xy": a * x + b * 2 * y + 0.1 * over, "xz": c * x + d * z + 0.3 * over}
    vectors |= {"rank": e * x + f * y, "micro": g * x + h * y}
    counts = ({"t": 1}, {"t": 2}, {"t": 3})
    found = shown(vectors, sizes, counts)
    assert found.counts == counts
    assert found.control == pytest.approx(0.25)
    left = [0.1 / math.hypot(a, 2 * b, 0.1), 0.3 / math.hypot(c, d, 0.3)]
    assert found.residual == pytest.approx(max(left))
    assert found.shares == pytest.approx((a / (a + b), c / (c + d)))
    batches = [size for row in sizes for size in row]
    halves = np.mean([math.ceil(size / 2) / size for size in batches]) if min(batches) > 1 else math.nan
    assert found.expected == pytest.approx(halves, nan_ok=True)
    assert found.rank_weight == pytest.approx(e * len(sizes[0]) if len(sizes[0]) > 1 else 1.0)
    assert found.micro_weight == pytest.approx(g * len(sizes) if len(sizes) > 1 else 1.0)


def test_gradients_of_zeros_have_no_shares_and_repeat_themselves():
    zeros = dict.fromkeys(STEPS, np.zeros(3))
    found = shown(zeros, [[4, 4]], ())
    assert (found.control, found.residual, found.rank_weight) == (0.0, 0.0, 0.0)
    assert np.isnan(found.shares).all()
    assert shown({**zeros, "own again": np.array([0, -0.5, 0.25])}, [[4, 4]], ()).control == 0.5
    x, y, z = np.eye(3)
    found = shown({**zeros, "x": x, "y": y, "z": z, "xy": 2 * x, "xz": z}, [[4, 4]], ())
    assert found.shares == (1.0, 0.0)
    assert np.isnan(shown({**zeros, "x": x, "y": y, "z": z, "xy": x - y, "xz": z}, [[4, 4]], ()).shares[0])
    assert shown(dict.fromkeys(STEPS, np.zeros(0)), [[4]], ()).control == 0.0
    one, other = np.array([1.0, 0, 0]), np.array([0, 2.0, 0])
    assert of_two(np.array([3.0, 4.0, 0.0]), one, other) == pytest.approx((3.0, 2.0, 0.0))
    # One that is as small as rounding beside the other takes no part.
    assert of_two(one + other, one, 1e-12 * other) == pytest.approx((1.0, 0.0, 2 / 5**0.5))
    assert of_two(np.array([1.0, 1e-9, 0]), one, 1e-9 * other)[1] == pytest.approx(0.5)


def name_of(shares, counts, expected=0.5, tolerance=1e-6):
    return named(Probe(0.0, 0.0, shares, expected, 1.0, 1.0, counts), tolerance)


def share_of(ratio):
    return ratio / (1 + ratio)


@pytest.mark.parametrize(
    ("ratio", "one", "other", "said"),
    [
        (6, {"a": 6}, {}, "samples count 6 : 1"),
        (5, {"a": 6}, {"a": 1}, "samples count 5 : 1"),
        (6, {"a": 6}, {"a": 1}, "it follows the size of a"),
        (5, {"a": 6}, {"a": 2}, "it follows the size of a, less one"),
        (3, {"long": 6, "b": 6}, {"long": 2, "b": 2}, "it follows the size of b"),
        (3, {"b": 4, "long": 6}, {"b": 2, "long": 2}, "it follows the size of b, less one"),
        (
            3,
            {"b": 5, "labels that count": 6},
            {"b": 2, "labels that count": 2},
            "it follows the number of labels that count",
        ),
        (2, {}, {}, "samples count 2 : 1"),
        (0.123456, {"a": 6}, {"a": 2}, "samples count 0.123 : 1"),
    ],
)
def test_the_part_with_the_ratio_of_the_weights_is_named_the_shortest_name_first(ratio, one, other, said):
    assert name_of((share_of(ratio), math.nan), (one, other, {})) == said
    assert name_of((math.nan, share_of(ratio)), (one, {}, other)) == said
    assert name_of((0.5, share_of(ratio)), (one, other, other)) == said
    assert name_of((share_of(ratio), share_of(9.0)), (one, other, {})) == said


def test_shares_that_say_nothing_are_passed_over():
    for share in (0.0, 1.0, -0.5, 1.5, math.nan, 0.5, 0.5 + 9e-7, 0.5 - 9e-7):
        assert name_of((share, share), ({"a": 6}, {"a": 2}, {"a": 3})) == ""
    for share in (0.5 + 2e-6, 0.5 - 2e-6):
        assert name_of((share, math.nan), ({}, {}, {})) == "samples count 1 : 1"
    assert name_of((0.625, math.nan), ({}, {}, {}), tolerance=0.125) == "samples count 1.67 : 1"
    for size, said in ((14, "it follows the size of a"), (15, "samples count 3 : 1")):  # of 3 : 1 by a quarter of 3
        assert name_of((0.75, math.nan), ({"a": size}, {"a": 4}, {}), tolerance=0.25) == said
    with pytest.raises(ValueError, match="zip"):
        name_of((0.5, 0.5), ({}, {}))


@pytest.mark.parametrize(
    ("ratio", "off", "near"), [(4, 3.9e-6, True), (4, 4.1e-6, False), (0.25, 9e-7, True), (0.25, 1.1e-6, False)]
)
def test_a_ratio_is_that_of_a_part_within_the_tolerance_of_a_large_one_relatively(ratio, off, near):
    counts = ({"a": 4}, {"a": 4 / ratio}, {})
    said = name_of((share_of(ratio + off), math.nan), counts)
    assert (said == "it follows the size of a") is near


def test_a_sample_that_has_more_places_than_half_is_no_heavier_for_it():
    """In a batch of three, x lies twice and y once."""
    assert name_of((share_of(3 * 2), math.nan), ({"a": 6}, {"a": 2}, {}), expected=2 / 3) == "it follows the size of a"
