"""Plans of contention and of turns, each drawn once more from its seed, step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lab.contention.patterns import plan
from paceline.lab.contention.usage import Usage, load_without_averaging
from paceline.lab.experiment import EQUAL, AsyncSetting, Setting

SITES = {"workers": st.integers(1, 5), "competitors": st.integers(1, 3), "seed": st.integers(0, 99)}


def told(planned):
    return [(one.worker, list(one.spans)) for one in planned]


@settings(max_examples=20)
@given(**SITES, seconds=st.floats(0.5, 40))
def test_bursts_come_after_calms_of_their_own_means(workers, competitors, seed, seconds):
    expected = []
    for worker in range(workers):
        for number in range(competitors):
            rng, at, spans = np.random.default_rng([seed, worker, number]), 0.0, []
            while (at := at + rng.exponential(1.5)) < seconds:
                stop = at + rng.exponential(1.2)
                spans.append((at, min(stop, seconds)))
                at = stop
            expected.append((worker, spans))
    found = told(plan("bursty", workers, competitors, seconds, seed))
    assert [worker for worker, _ in found] == [worker for worker, _ in expected]
    for (_, spans), (_, known) in zip(found, expected, strict=True):
        assert spans == pytest.approx(known) if not spans else np.allclose(spans, known)


@settings(max_examples=20)
@given(**SITES, seconds=st.floats(0.5, 40))
def test_movers_stay_two_to_six_seconds_and_never_stay_again_where_they_could_move(workers, competitors, seed, seconds):
    expected = []
    for number in range(competitors):
        rng = np.random.default_rng([seed, number])
        worker, at, spans = rng.integers(workers), 0.0, {w: [] for w in range(workers)}
        while at < seconds:
            stop = at + rng.uniform(2.0, 6.0)
            spans[worker].append((at, min(stop, seconds)))
            step = rng.integers(1, workers) if workers > 1 else rng.integers(1, 2)
            at, worker = stop, (worker + step) % workers
        expected += [(w, own) for w, own in spans.items() if own]
    assert told(plan("moving", workers, competitors, seconds, seed)) == expected


@settings(max_examples=20)
@given(**SITES, seconds=st.floats(0.5, 40))
def test_steady_competitors_stand_beside_the_first_half_of_a_shuffled_fleet(workers, competitors, seed, seconds):
    chosen = np.random.default_rng(seed).permutation(workers)[: workers // 2 or 1]
    expected = [(w, [(0.0, seconds)]) for w in range(workers) if w in chosen for _ in range(competitors)]
    assert told(plan("steady", workers, competitors, seconds, seed)) == expected
    assert plan("none", workers, competitors, seconds, seed) == []


@settings(max_examples=20)
@given(
    **SITES,
    seconds=st.floats(0.5, 12),
    slot=st.sampled_from([0.3, 1.0, 2.4, 2.6]),
    hosts=st.integers(1, 3),
    slots=st.integers(1, 4),
)
def test_a_competitor_is_busy_for_its_part_of_every_cycle_from_a_moment_that_is_drawn(
    workers, competitors, seed, seconds, slot, hosts, slots
):
    share = np.random.default_rng(seed).choice([0.0, 0.2, 0.5, 0.9, 1.0, 7.0], (slots, hosts))
    found = told(Usage(share, slot).plan(workers, competitors, seconds, seed))
    cycles = {0.3: 1, 1.0: 1, 2.4: 2, 2.6: 3}[slot]
    length = slot / cycles
    for site, (worker, spans) in enumerate(found):
        assert worker == site // competitors
        number = site % competitors
        rng, joined = np.random.default_rng([seed, worker, number]), []
        for at in range(int(np.ceil(seconds / slot))):
            busy = min(max(min(share[at % slots, worker % hosts], 1.0) * competitors - number, 0.0), 1.0)
            for cycle in range(cycles):
                start = (at * cycles + cycle) * length + rng.uniform(0.0, (1.0 - busy) * length)
                stop = min(start + busy * length, seconds)
                if joined and start <= joined[-1][1]:
                    joined[-1][1] = stop
                elif start < stop:
                    joined.append([start, stop])
        assert len(spans) == len(joined)
        assert np.allclose(spans, joined) if spans else not joined
    assert len(found) == workers * competitors


@given(st.lists(st.floats(0, 9), min_size=2, max_size=9), st.sampled_from([1.0, 5.0, 30.0]))
def test_a_load_is_an_average_that_forgets_within_a_minute(tasks, interval):
    kept, load = np.exp(-interval / 60), [0.5]
    for running in tasks:
        load.append(kept * load[-1] + (1 - kept) * running)
    assert np.allclose(load_without_averaging(load, interval), tasks)
    if interval == 5.0:
        assert np.allclose(load_without_averaging(load), tasks)


@pytest.mark.parametrize("rounds", range(1, 6))
@pytest.mark.parametrize("schemes", [("ewma",), ("ewma", "auto"), ("auto", "control", "ewma")])
def test_schemes_take_turns_there_and_back_each_between_two_of_equal_batches(rounds, schemes):
    expected = []
    for seed in range(rounds):
        expected.append((EQUAL, seed))
        for scheme in reversed(schemes) if seed in (1, 3) else schemes:
            expected += [(scheme, seed), (EQUAL, seed)]
    assert Setting(schemes=schemes, rounds=rounds).turns == expected


@pytest.mark.parametrize("rounds", range(1, 6))
def test_asynchronous_schemes_begin_one_later_each_round(rounds):
    orders = ["saps asp bsp", "asp bsp saps", "bsp saps asp"]
    expected = [(name, seed) for seed in range(rounds) for name in orders[seed % 3].split()]
    assert AsyncSetting(rounds=rounds).turns == expected
