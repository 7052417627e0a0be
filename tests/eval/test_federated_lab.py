"""The federated lab: clients that take time, data that differs, and schemes that really train."""

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace, read_traces
from paceline.eval.replay.federated import (
    AdaptiveRate,
    AdaptiveSteps,
    BalancedClients,
    DeadlineDrop,
    RoundSetting,
    SmallNetwork,
    Standard,
    digits,
    fedscale,
    iter_buffered,
    iter_rounds,
    mixture,
    phones,
    slowdown_of,
    spread,
)
from paceline.eval.replay.federated.client_data import LEAST_SAMPLES

FLASH = (
    Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "batch_profiles" / "flash"
)
SCHEMES = [Standard(), BalancedClients(), AdaptiveSteps(), AdaptiveRate(), DeadlineDrop()]


@pytest.fixture
def population(tmp_path):
    capacity = {f"c{i}": {"computation": 10.0 * (1 + i), "communication": 8e3} for i in range(6)}
    path = tmp_path / "capacity.json"
    path.write_text(json.dumps(capacity))
    return fedscale(read_traces(path, "fedscale")[0], model_bytes=1e5)


@pytest.fixture(scope="module")
def shards():
    return mixture(6, 0.5, seed=0, samples=1500)


SETTING = RoundSetting(participation=1.0, rounds=6, batch=12, local_steps=4, rate=0.3)


def test_clients_of_a_fedscale_table_take_the_time_that_it_says(population):
    seconds = population.compute_seconds(np.array([0, 2]), np.array([10, 10]), np.array([4, 4]), 0)
    assert seconds == pytest.approx([10 * 4 * 0.010, 10 * 4 * 0.030])
    assert population.names[:2] == ("c0", "c1")
    comm = population.comm_seconds(np.zeros(4000, dtype=np.intp), np.random.default_rng(0))
    assert np.median(comm) == pytest.approx(2 * 8 * 1e5 / 8e6, rel=0.02)


def test_another_trace_than_fedscales_is_refused():
    with pytest.raises(ValueError, match="must come from the reader of the format 'fedscale'"):
        fedscale(Trace(samples=[[1.0]], seconds=[[1.0]]))


def test_moving_clients_are_slowed_down_row_by_row(population):
    trace = Trace(samples=[[1.0]] * 3, seconds=[[1.0], [1.0], [4.0]])
    moved = population.moved_by([trace], seed=1)
    row = np.array([0])
    at = [moved.compute_seconds(row, np.array([10]), np.array([1]), k)[0] for k in range(3)]
    assert sorted(at) == pytest.approx([0.1, 0.1, 0.4])
    whole = moved.compute_seconds(row, np.array([10]), np.array([3]), 0)[0]
    assert whole == pytest.approx(sum(at))


def test_a_trace_without_speeds_slows_nobody_down():
    with pytest.raises(ValueError, match="must hold a worker with a speed"):
        slowdown_of([Trace(samples=[[np.nan]], seconds=[[np.nan]])])


@pytest.mark.skipif(not FLASH.is_dir(), reason=f"the phone profiles are not in {FLASH}: point PACELINE_DATA to them")
def test_phones_are_those_of_the_profiles():
    population = phones(40, FLASH, seed=0)
    assert set(population.devices) == {"nexus6", "redmi_note8"}
    slope = {
        device: np.median([s for s, d in zip(population.slope, population.devices, strict=True) if d == device])
        for device in set(population.devices)
    }
    assert 1.2 < slope["nexus6"] / slope["redmi_note8"] < 6.0


def test_missing_profiles_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no phone profile"):
        phones(4, tmp_path, seed=0)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(2, 12), st.sampled_from([None, 0.05, 0.5, 5.0]), st.integers(0, 1000))
def test_every_sample_lies_on_exactly_one_client_and_nobody_is_without(clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(4, size=400)
    parts = spread(labels, clients, alpha, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    assert min(map(len, parts)) >= LEAST_SAMPLES


def test_a_small_concentration_leaves_a_client_fewer_classes():
    labels = np.repeat(np.arange(10), 400)

    def classes(alpha):
        parts = spread(labels, 10, alpha, np.random.default_rng(0))
        return np.mean([np.max(np.bincount(labels[part], minlength=10)) / len(part) for part in parts])

    assert classes(None) < classes(1.0) < classes(0.1)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="too few for 10 clients"):
        spread(np.zeros(40, dtype=np.int64), 10, None, np.random.default_rng(0))


def test_gradients_are_those_of_the_mean_cross_entropy():
    network = SmallNetwork.drawn(5, 3, seed=0)
    generator = np.random.default_rng(1)
    inputs, labels = generator.standard_normal((7, 5)), generator.integers(3, size=7)
    step = 1e-3
    moved = network.trained(inputs, labels, batch=7, steps=1, rate=step, generator=generator)
    analytic = [(a - b) / step for a, b in zip(network.weights, moved.weights, strict=True)]

    def loss(weights):
        into, into_bias, out, out_bias = weights
        score = np.maximum(inputs @ into + into_bias, 0) @ out + out_bias
        return np.mean(np.log(np.exp(score).sum(axis=1)) - score[np.arange(7), labels])

    for which, place in ((0, (2, 4)), (1, (4,)), (2, (4, 1)), (3, (2,))):
        numeric = []
        for sign in (1, -1):
            weights = [each.copy() for each in network.weights]
            weights[which][place] += sign * 1e-6
            numeric.append(loss(weights))
        assert analytic[which][place] == pytest.approx((numeric[0] - numeric[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: type(scheme).__name__)
@pytest.mark.slow
def test_a_run_learns_and_its_clock_runs_and_it_can_be_repeated(scheme, population, shards):
    first, second = (list(iter_rounds(population, shards, scheme, SETTING)) for _ in range(2))
    assert first[-1].accuracy > 2 * 0.1  # ten classes
    assert all(after.seconds > before.seconds for before, after in pairwise(first))
    assert [moment.accuracy for moment in first] == [moment.accuracy for moment in second]


def test_balanced_rounds_are_shorter_and_more_even_than_standard_ones(population, shards):
    timed = replace(SETTING, rate=0.0, rounds=12)
    plain, ours = (list(iter_rounds(population, shards, scheme, timed)) for scheme in (Standard(), BalancedClients()))
    assert ours[-1].seconds < 0.75 * plain[-1].seconds
    assert np.nanmedian([m.spread for m in ours]) < 1.15 < np.nanmedian([m.spread for m in plain])


def test_at_a_rate_of_0_rounds_are_only_timed(population, shards):
    timed, trained = (
        list(iter_rounds(population, shards, Standard(), replace(SETTING, rate=rate, rounds=2))) for rate in (0.0, 0.3)
    )
    assert [moment.seconds for moment in timed] == [moment.seconds for moment in trained]
    assert all(np.isnan(moment.accuracy) for moment in timed)


def test_buffered_updates_need_no_round(population, shards):
    run = list(iter_buffered(population, shards, SETTING))
    plain = list(iter_rounds(population, shards, Standard(), SETTING))
    assert len(run) == SETTING.rounds
    assert run[-1].seconds < plain[-1].seconds
    assert run[-1].accuracy > 2 * 0.1


def test_adaptive_schemes_do_what_they_say(population, shards):
    from paceline.eval.replay.federated.federated_replay import balancer_of

    balancer = balancer_of(population, shards, SETTING)
    for _ in iter_rounds(population, shards, BalancedClients(), SETTING):
        pass
    given = {type(scheme).__name__: scheme.assign(balancer, population.names) for scheme in SCHEMES}
    assert given["AdaptiveSteps"].steps.sum() == 4 * 6
    assert np.array_equal(given["AdaptiveRate"].rates, given["AdaptiveRate"].sizes / 12)
    assert set(given["BalancedClients"].steps) == {4}
    assert np.all(given["BalancedClients"].rates == 1.0)


def test_a_deadline_leaves_out_those_expected_late_and_a_bad_share_is_refused(population, shards):
    from paceline.eval.replay.federated.federated_replay import balancer_of
    from paceline.eval.replay.federated.federated_schemes import report_round

    balancer = balancer_of(population, shards, SETTING)
    names = list(population.names)
    equal = Standard().assign(balancer, names)
    seconds = np.arange(1.0, 7.0)
    for _ in range(2):
        report_round(balancer, names, equal, seconds, np.full(6, 0.1), np.ones(6, dtype=bool))
    given = DeadlineDrop(0.5).assign(balancer, names)
    assert given.asked.tolist() == [True] * 4 + [False] * 2
    with pytest.raises(ValueError, match="share must lie in"):
        DeadlineDrop(0.0)


def test_digits_are_spread_over_clients():
    pytest.importorskip("sklearn")
    shards = digits(10, 0.5, seed=0)
    assert shards.amounts.sum() + len(shards.test_labels) == 1797
    assert shards.classes == 10
