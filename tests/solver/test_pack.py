"""The laws of `pack`, over packed and padded micro-batches, free and equal counts. Axes: N samples, W ranks."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.predictors import Curves
from paceline.solver import Packing, PackingStatus, TokenCost, pack

LENGTHS = st.one_of(st.integers(1, 12), st.integers(1, 400))
SPEEDS = st.one_of(st.sampled_from([0.25, 0.5, 1.0]), st.floats(0.1, 10))
COSTS = st.builds(
    TokenCost,
    st.just(1.0),
    st.sampled_from([0, 0, 0.01]),
    st.sampled_from([0, 2.0]),
    st.sampled_from([0, 0, 5.0, 50.0]),
)


@st.composite
def problems(draw: st.DrawFn, samples: int = 40, ranks: int = 6) -> dict[str, Any]:
    lengths = draw(st.lists(LENGTHS, min_size=1, max_size=samples))
    speeds = draw(st.lists(SPEEDS, min_size=1, max_size=ranks))
    cap = draw(st.one_of(st.none(), st.floats(1, 5).map(lambda room: float(int(room * max(lengths))))))
    return {
        "lengths": lengths,
        "speeds": speeds,
        "cap": cap,
        "cost": draw(COSTS),
        "micro_batches": draw(st.sampled_from([None, "equal", "lockstep", 1, 3])),
        "padded": draw(st.booleans()),
    }


def packed(problem: dict[str, Any]) -> Packing:
    try:
        return pack(**problem)
    except ValueError as error:
        assume("were not packed" not in str(error))  # a given number of micro-batches may be too small
        raise


def seconds_of(problem: dict[str, Any], packing: Packing) -> list[float]:
    """The time of each rank, computed apart from the solver, with the cap asserted."""
    length_N, cost, cap = np.array(problem["lengths"], float), problem["cost"], problem["cap"] or np.inf
    seconds = []
    for rank, speed in enumerate(problem["speeds"]):
        work = 0.0
        for own in (length_N[places] for places in packing.samples_of(rank)):
            if problem["padded"]:
                own = np.full(len(own), own.max(initial=0.0))
            assert own.sum() <= cap
            work += cost(own).sum() + cost.micro_batch
        seconds.append(work / speed)
    return seconds


@given(problems())
@settings(max_examples=300, deadline=None)
def test_packing_is_complete_and_true(problem):
    packing, count = packed(problem), problem["micro_batches"]
    every = [place for rank in range(len(problem["speeds"])) for own in packing.samples_of(rank) for place in own]
    assert sorted(every) == list(range(len(problem["lengths"])))
    np.testing.assert_allclose(packing.seconds, seconds_of(problem, packing))
    assert packing.makespan == pytest.approx(packing.lockstep if count == "lockstep" else packing.seconds.max())
    assert packing.lower_bound <= packing.makespan * (1 + 1e-9)
    assert packing.makespan <= packing.lockstep * (1 + 1e-9)
    assert packing.fill.max() <= 1
    if count in ("equal", "lockstep"):
        assert len(set(packing.counts)) == 1
    elif count is not None:
        assert set(packing.counts) == {count}
    sizes = [len(own) for rank in range(len(problem["speeds"])) for own in packing.samples_of(rank)]
    if len(problem["lengths"]) >= len(sizes):
        assert min(sizes) >= 1
    assert isinstance(packing.status, PackingStatus)


@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_order_of_samples_does_not_matter(problem, chance):
    order = list(range(len(problem["lengths"])))
    chance.shuffle(order)
    first, other = packed(problem), packed({**problem, "lengths": [problem["lengths"][place] for place in order]})
    np.testing.assert_array_equal(first.seconds, other.seconds)
    np.testing.assert_array_equal(first.counts, other.counts)


@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_order_of_ranks_does_not_matter(problem, chance):
    order = list(range(len(problem["speeds"])))
    chance.shuffle(order)
    first, other = packed(problem), packed({**problem, "speeds": [problem["speeds"][place] for place in order]})
    assert first.makespan == other.makespan
    for rank, place in enumerate(order):
        if problem["speeds"].count(problem["speeds"][place]) == 1:
            assert other.work[rank] == first.work[place]


@given(problems())
@settings(deadline=None)
def test_faster_rank_has_no_less_work(problem):
    packing = packed(problem)
    work_W = packing.work[np.lexsort((packing.work, problem["speeds"]))]
    assert (np.diff(work_W) >= -1e-9 * work_W.max()).all()


@given(problems(), st.sampled_from([0.25, 8.0]))
@settings(deadline=None)
def test_unit_of_speed_does_not_matter(problem, unit):
    other = packed({**problem, "speeds": [unit * speed for speed in problem["speeds"]]})
    first = packed(problem)
    np.testing.assert_array_equal(first.rank, other.rank)
    np.testing.assert_array_equal(first.micro_batch, other.micro_batch)


# Brute force: the least work of every set of samples in so many micro-batches, by its subsets.


@cache
def subsets(mask: int) -> tuple[int, ...]:
    """Subsets of a set that hold its lowest member."""
    low, rest = mask & -mask, mask & (mask - 1)
    found, part = [], rest
    while True:
        found.append(part | low)
        if not part:
            return tuple(found)
        part = (part - 1) & rest


def least_work(problem: dict[str, Any]) -> np.ndarray:
    """The least work of each set in at most k micro-batches, without their own, ``[K + 1, 2**N]``."""
    length_N, cost, cap = np.array(problem["lengths"], float), problem["cost"], problem["cap"] or np.inf
    count = len(length_N)
    alone = np.full(1 << count, np.inf)
    for mask in range(1, 1 << count):
        own = length_N[[place for place in range(count) if mask >> place & 1]]
        own = np.full(len(own), own.max()) if problem["padded"] else own
        alone[mask] = cost(own).sum() if own.sum() <= cap else np.inf
    table = np.full((count + 1, 1 << count), np.inf)
    table[:, 0] = 0.0
    for used in range(1, count + 1):
        for mask in range(1, 1 << count):
            table[used, mask] = min(alone[part] + table[used - 1, mask ^ part] for part in subsets(mask))
    return table


def shortest(problem: dict[str, Any]) -> float:
    """The shortest step of all packings by the rules of `pack`."""
    table, fixed, ranks = least_work(problem), problem["cost"].micro_batch, len(problem["speeds"])
    samples = len(problem["lengths"])
    limit = problem["micro_batches"]
    counts = [None] if limit is None else range(1, samples + 2) if isinstance(limit, str) else [limit]
    best = np.inf
    for count in counts:
        if count is None:
            work = (table + fixed * np.arange(samples + 1)[:, None]).min(axis=0)
        else:
            work = table[min(count, samples)] + fixed * count
        for owner in product(range(ranks), repeat=samples):
            own = [sum(1 << place for place in range(samples) if owner[place] == rank) for rank in range(ranks)]
            least = 0 if samples < ranks else 1 if count is None or samples < ranks * count else count
            if min(mask.bit_count() for mask in own) >= least:
                best = min(best, max(work[mask] / speed for mask, speed in zip(own, problem["speeds"], strict=True)))
    return best


@given(problems(samples=6, ranks=3))
@settings(max_examples=60, deadline=None)
def test_no_packing_beats_the_bound(problem):
    packing, best = packed(problem), shortest(problem)
    assert packing.lower_bound <= best * (1 + 1e-9)
    assert best <= packing.makespan * (1 + 1e-9)
    assert problem["micro_batches"] == "lockstep" or packing.makespan <= best * 2


def test_small_packings_are_near_the_best():
    chance, excess = np.random.default_rng(5), []
    for _ in range(40):
        problem = {
            "lengths": chance.integers(20, 400, 6).tolist(),
            "speeds": chance.uniform(0.4, 1, 2).tolist(),
            "cap": 800.0,
            "cost": TokenCost(1, 0.001, 0, 20),
            "micro_batches": [None, "equal"][int(chance.integers(2))],
            "padded": bool(chance.integers(2)),
        }
        excess.append(pack(**problem).makespan / shortest(problem) - 1)
    assert np.mean(excess) < 0.04


# Quality at the size of real jobs.


def real_lengths(kind: str, count: int, chance: np.random.Generator) -> np.ndarray:
    if kind == "log-normal":
        return np.clip(chance.lognormal(6.2, 0.83, count), 16, 8192).astype(int)
    if kind == "tail":
        return np.clip(64 * chance.pareto(1.1, count) + 64, 16, 8192).astype(int)
    if kind == "uniform":
        return chance.integers(64, 4096, count)
    return np.where(chance.random(count) < 0.8, chance.integers(50, 600, count), chance.integers(3000, 8192, count))


KINDS = ["log-normal", "tail", "uniform", "two modes"]
FLEETS = {"alike": [1.0] * 8, "mixed": [1, 1, 1, 1, 0.8, 0.8, 0.5, 0.5], "half": [1.0] * 7 + [0.5]}


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("micro_batches", [None, "equal"])
def test_gap_of_512_samples_on_8_ranks(fleet, micro_batches):
    chance, gaps = np.random.default_rng(0), []
    for kind in KINDS:
        found = pack(
            real_lengths(kind, 512, chance),
            cap=8192,
            speeds=FLEETS[fleet],
            micro_batches=micro_batches,
            cost=TokenCost(1, 1 / 8192, 0, 200),
        )
        gaps.append(found.gap)
        if fleet != "alike":
            plain = pack(
                real_lengths(kind, 512, chance),
                8,
                cap=8192,
                micro_batches=micro_batches,
                cost=TokenCost(1, 1 / 8192, 0, 200),
            )
            assert (plain.work / FLEETS[fleet]).max() > 1.4 * found.makespan * plain.work.sum() / found.work.sum()
    assert max(gaps) <= 0.005


def test_gap_of_4096_samples_on_256_ranks():
    chance = np.random.default_rng(0)
    speeds = chance.uniform(0.6, 1, 256)
    gaps = [
        pack(
            real_lengths(kind, 4096, chance),
            cap=8192,
            speeds=speeds,
            micro_batches=micro_batches,
            cost=TokenCost(1, 1 / 8192, 0, 200),
        ).gap
        for kind in KINDS
        for micro_batches in (None, "equal")
    ]
    assert np.quantile(gaps, 0.9) <= 0.02


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_lockstep_ends_sooner_than_equal(kind, fleet):
    lengths = real_lengths(kind, 512, np.random.default_rng(0))
    equal, lockstep = (
        pack(lengths, cap=8192, speeds=FLEETS[fleet], micro_batches=way, cost=TokenCost(1, 1 / 8192, 0, 200))
        for way in ("equal", "lockstep")
    )
    assert lockstep.makespan <= equal.lockstep
    assert lockstep.gap <= (0.25 if kind == "tail" else 0.05)  # of the tail, a few samples are half a round


def test_small_lockstep_packings_are_near_the_best():
    chance, excess = np.random.default_rng(7), []
    for _ in range(10):
        lengths, speeds = chance.integers(20, 400, 6), chance.uniform(0.4, 1, 2)
        best = np.inf
        for rounds in (1, 2, 3):
            places = np.array(list(product(range(2 * rounds), repeat=6)))
            load = np.stack([(lengths * (places == place)).sum(axis=1) for place in range(2 * rounds)], axis=1)
            filled = [(places == place).any(axis=1) for place in range(2 * rounds)]
            fits = (load <= 800).all(axis=1) & np.all(filled, axis=0)
            seconds = (load.reshape(-1, rounds, 2) + 20) / speeds
            best = min(best, seconds.max(axis=2).sum(axis=1)[fits].min(initial=np.inf))
        cost = TokenCost(micro_batch=20)
        excess.append(pack(lengths, cap=800, speeds=speeds, cost=cost, micro_batches="lockstep").makespan / best - 1)
    assert min(excess) > -1e-9
    assert np.mean(excess) < 0.04


# Several parts.


@pytest.fixture
def vision() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(1)
    image = np.where(chance.random(400) < 0.4, chance.integers(256, 4000, 400), 0)
    return {"image": image, "text": chance.integers(40, 3000, 400)}


def test_barrier_takes_the_sum_of_the_longest_phases(vision):
    speeds = np.array([1, 1, 0.8, 0.5])
    cost = {"image": TokenCost(2.0, micro_batch=30), "text": TokenCost(1.0, 1e-4)}
    options = {"cap": {"text": 8192, "image": 12000}, "speeds": speeds, "cost": cost}
    packing, plain = pack(vision, **options, barrier=True), pack(vision, **options)

    def phases(packing: Packing) -> float:
        total = 0.0
        for name in ("image", "text"):
            work = [
                sum(cost[name](vision[name][own]).sum() + cost[name].micro_batch for own in packing.samples_of(rank))
                for rank in range(4)
            ]
            total += max(np.array(work) / speeds)
        return total

    assert packing.makespan == pytest.approx(phases(packing))
    assert packing.gap < 0.02
    assert phases(packing) < phases(plain)
    for rank in range(4):
        for own in packing.samples_of(rank):
            assert vision["text"][own].sum() <= 8192
            assert vision["image"][own].sum() <= 12000


@pytest.mark.parametrize("micro_batches", [None, "equal", 45])
def test_one_cap_is_for_the_sum_of_the_parts(vision, micro_batches):
    packing = pack(vision, 4, cap=8192, micro_batches=micro_batches)
    for rank in range(4):
        for own in packing.samples_of(rank):
            assert vision["text"][own].sum() + vision["image"][own].sum() <= 8192
    assert packing.gap < 0.01


# Arguments, reasons, learned costs.


def test_forecast_curves_in_place_of_speeds():
    curves = Curves.from_speed(np.array([2.0, 1.0]))
    lengths = [600, 500, 400, 300, 200, 100]
    np.testing.assert_array_equal(
        pack(lengths, cap=1000, speeds=curves).rank, pack(lengths, cap=1000, speeds=[2, 1]).rank
    )


@pytest.mark.parametrize("micro_batches", ["equal", "lockstep"])
def test_floors_of_curves_bound_the_step(micro_batches):
    each = {"floor": 5.0, "slope": 0.001, "intercept": 0.1, "limit": np.inf}
    curves = Curves(**{name: np.full(2, value) for name, value in each.items()})
    packing = pack([600, 500, 400, 300], cap=1000, speeds=curves, micro_batches=micro_batches)
    assert packing.lower_bound <= packing.makespan <= packing.lockstep
    assert packing.makespan >= 5.0


def test_given_costs_are_used_as_they_are():
    packing = pack([10, 10, 10], cap=10, speeds=[1.0, 1.0], cost=[4.0, 2.0, 2.0])
    np.testing.assert_array_equal(packing.seconds, [4.0, 4.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [5, 12], "ranks": 2, "cap": 10}, "exceed the cap of a micro-batch, got 12 for sample 1"),
        ({"lengths": [5, 0], "ranks": 2}, "got 0 for sample 1"),
        ({"lengths": [5, np.nan], "ranks": 2}, "sample 1"),
        ({"lengths": [], "ranks": 2}, "lengths must hold at least one sample"),
        ({"lengths": [5]}, "pass ranks"),
        ({"lengths": [5], "ranks": 3, "speeds": [1, 1]}, "3 ranks"),
        ({"lengths": [5], "speeds": [1, 0]}, "speeds"),
        ({"lengths": [5], "ranks": 1, "micro_batches": "same"}, "micro_batches"),
        ({"lengths": [6, 6, 6], "ranks": 1, "cap": 10, "micro_batches": 2}, "at least 3"),
        ({"lengths": {"text": [5]}, "ranks": 1, "cost": {"image": TokenCost()}}, "image"),
        ({"lengths": {"text": [5], "image": [1, 2]}, "ranks": 1}, "shapes"),
        ({"lengths": [5], "ranks": 1, "cost": [1, 2]}, "cost must"),
        ({"lengths": [5], "ranks": 1, "barrier": True}, "barrier"),
        ({"lengths": [1, 2], "ranks": 1, "cost": [2, 1], "padded": True}, "padded"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        pack(**arguments)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"lengths": [10] * 64, "ranks": 4, "cap": 40}, "BALANCED"),
        ({"lengths": [100, 10, 10], "ranks": 2}, "HELD_BY_SAMPLE"),
        ({"lengths": [10] * 12, "speeds": [3, 1], "cap": 60, "micro_batches": 1}, "HELD_BY_CAP"),
        ({"lengths": [10] * 30, "speeds": [1, 0.1], "cap": 60, "micro_batches": 6}, "HELD_BY_SLOW_RANK"),
        ({"lengths": [9] * 4, "ranks": 2, "cap": 12, "cost": TokenCost(micro_batch=50)}, "BALANCED"),
        ({"lengths": [10, 10, 10, 9, 9], "ranks": 2}, "COARSE"),
    ],
)
def test_reason_of_the_gap(arguments, status):
    assert pack(**arguments).status is PackingStatus[status]


@pytest.mark.parametrize("padded", [False, True])
def test_cost_is_learned_from_measured_micro_batches(padded):
    chance, true = np.random.default_rng(2), TokenCost(2e-4, 3e-8, 1e-3, 0.02)
    batches = [chance.integers(50, 4000, int(chance.integers(1, 12))) for _ in range(60)]
    seconds = []
    for own in batches:
        own = np.full(len(own), own.max()) if padded else own
        seconds.append((true(own).sum() + true.micro_batch) * chance.uniform(0.98, 1.02))
    found = TokenCost.fit(batches, seconds, padded=padded)
    for length in (100, 1000, 4000):
        assert found([length]) + found.micro_batch == pytest.approx(true([length]) + true.micro_batch, rel=0.05)


def test_times_that_follow_no_sample_are_refused():
    with pytest.raises(ValueError, match="token, square or sample above 0"):
        TokenCost.fit([[100], [400], [200, 500]], [1.0, 1.0, 1.0])
