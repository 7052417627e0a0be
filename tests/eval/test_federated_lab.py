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
    ClientAssignment,
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_buffered_updates_need_no_round(population, shards):
    run = list(iter_buffered(population, shards, SETTING))
    plain = list(iter_rounds(population, shards, Standard(), SETTING))
    assert len(run) == SETTING.rounds
    assert run[-1].seconds < plain[-1].seconds
    assert run[-1].accuracy > 2 * 0.1


@pytest.mark.slow
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
    assert (shards.inputs.min(), shards.inputs.max()) == (0.0, 1.0)
    assert shards.classes == 10


class Given:
    """Equal work for the clients of a mask, and a deadline; it notes who was chosen, and the balancer."""

    def __init__(self, asked, deadline):
        self.asked_of, self.deadline, self.chosen, self.balancer = asked, deadline, [], None

    def assign(self, balancer, chosen):
        self.balancer = balancer
        self.chosen.append(chosen)
        sizes = np.array([12 if self.asked_of(name) else 0 for name in chosen])
        return ClientAssignment(sizes, np.full(len(chosen), 4), np.ones(len(chosen)), self.deadline)


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [np.inf, 1.5])
def test_a_round_lasts_until_its_last_reply_or_its_deadline_and_its_spread_is_that_of_clients_met_before(
    population, shards, deadline
):
    scheme = Given(lambda name: name != "c2", deadline)
    setting = replace(SETTING, rate=0.0, participation=0.5, rounds=12, met_before=2, seed=3)
    moments, clock, met = list(iter_rounds(population, shards, scheme, setting)), 0.0, dict.fromkeys(range(6), 0)
    for k, moment in enumerate(moments):
        draw = np.random.default_rng([3, k])
        rows = draw.choice(6, 3, replace=False)
        end = population.slope[rows] * 12 * 4 + population.comm_seconds(rows, draw)
        ends = {int(row): took for row, took in zip(rows, end.tolist(), strict=True) if row != 2}
        assert scheme.chosen[k] == [f"c{row}" for row in rows]
        clock += min(max(ends.values()), deadline)
        assert moment.seconds == pytest.approx(clock)
        known = [took for row, took in ends.items() if met[row] >= 2]
        spread = max(known) / np.median(known) if len(known) > 1 else np.nan
        waiting = 1 - np.mean(known) / max(known) if len(known) > 1 else np.nan
        assert (moment.spread, moment.waiting) == pytest.approx((spread, waiting), nan_ok=True)
        met = {row: count + (row in ends) for row, count in met.items()}
    assert scheme.balancer.rounds == 12
    assert np.isfinite([moment.spread for moment in moments]).any()
    used = scheme.balancer.shares(list(population.names)).used
    late = population.slope * 48 > deadline
    assert (used[late] == 0).all()
    assert (used[~late] > 0).sum() >= 2


def test_updates_are_averaged_by_amounts_of_data_and_those_that_come_late_do_not_count(population, shards):
    class Noted(Given):
        def assign(self, balancer, chosen):
            given = super().assign(balancer, chosen)
            return replace(given, sizes=np.where(given.sizes > 0, [8, 9, 5, 7, 3, 6], 0), rates=np.arange(1.0, 7.0))

    setting = replace(SETTING, rounds=1, seed=5)
    order = np.random.default_rng([5, 0]).choice(6, 6, replace=False)
    (moment,) = iter_rounds(population, shards, Noted(lambda name: name != "c0", 1.3), setting)
    start = SmallNetwork.drawn(shards.inputs.shape[1], shards.classes, 5)
    changes, amounts = [], []
    for row, size, factor in zip(order.tolist(), [8, 9, 5, 7, 3, 6], range(1, 7), strict=True):
        if row and population.slope[row] * size * 4 + 0.2 < 1.3:
            own = shards.shard[row]
            draw = np.random.default_rng([5, 0, row])
            trained = start.trained(
                shards.inputs[own], shards.labels[own], batch=size, steps=4, rate=0.3 * factor, generator=draw
            )
            changes.append([new - old for new, old in zip(trained.weights, start.weights, strict=True)])
            amounts.append(len(own))
    assert 3 <= len(changes) < 5
    mean = [
        old + sum(n / sum(amounts) * change[place] for n, change in zip(amounts, changes, strict=True))
        for place, old in enumerate(start.weights)
    ]
    assert moment.accuracy == SmallNetwork(tuple(mean)).accuracy(shards.test_inputs, shards.test_labels)


def test_a_local_training_passes_over_all_samples_before_it_takes_one_again():
    network, inputs = SmallNetwork.drawn(3, 2, seed=0), np.eye(10, 3)
    inputs[:, 0] = np.arange(10)
    seen = []

    class Noted(np.ndarray):
        def __getitem__(self, rows):
            seen.append(np.asarray(rows).tolist())
            return np.asarray(self)[rows]

    labels = np.arange(10) % 2
    network.trained(inputs.view(Noted), labels, batch=4, steps=5, rate=0.1, generator=np.random.default_rng(0))
    taken = [row for rows in seen for row in rows]
    assert [len(rows) for rows in seen] == [4] * 5
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))


def test_buffered_clients_never_wait_and_each_update_counts_less_the_staler_it_is(population, shards, monkeypatch):
    moves, moved = [], SmallNetwork.moved

    def noted(self, changes, shares):
        moves.append(shares)
        return moved(self, changes, shares)

    monkeypatch.setattr(SmallNetwork, "moved", noted)
    calm = replace(population, bandwidth=np.full(6, 1e30))
    alike = replace(shards, shard=tuple(rows[:8] for rows in shards.shard))
    setting = replace(SETTING, participation=0.5, rounds=4, batch=8)
    run = list(iter_buffered(calm, alike, setting))
    draw, clock, idle, jobs, ends, wanted, version = np.random.default_rng([0, 0]), 0.0, set(range(6)), [], [], [], 0
    for serial in range(3 + 12):
        if len(jobs) == 3:
            end, _, row, begun = jobs.pop(jobs.index(min(jobs)))
            clock = end
            ends.append(clock)
            wanted.append((1 + version - begun) ** -0.5 / 3)
            version += len(ends) % 3 == 0
            idle.add(row)
        row = int(draw.choice(sorted(idle)))
        idle.discard(row)
        draw.standard_normal(1)  # of its link
        jobs.append((clock + calm.slope[row] * 8 * 4, serial, row, version))
    assert [moment.seconds for moment in run] == pytest.approx(ends[2::3])
    assert [share for shares in moves for share in shares] == pytest.approx(wanted)
    assert len(set(np.round(wanted, 6))) > 1
    assert all(np.isnan(moment.spread) and moment.waiting == 0 for moment in run)


@pytest.mark.parametrize("samples", [1500, 1003])
def test_a_fifth_is_held_out_and_the_rest_lies_on_the_clients(samples):
    shards = mixture(5, None, seed=1, samples=samples)
    assert len(shards.test_labels) == int(0.2 * samples)
    assert sorted(np.concatenate(shards.shard)) == list(range(samples - int(0.2 * samples)))
    assert shards.amounts.tolist() == [len(rows) for rows in shards.shard]
    assert np.ptp(shards.amounts) <= 1
    other = mixture(5, None, seed=2, samples=samples)
    both = [np.concatenate([each.inputs, each.test_inputs]) for each in (shards, other)]
    assert np.array_equal(np.sort(both[0], axis=0), np.sort(both[1], axis=0)), "a seed spreads the same samples"
    assert not np.array_equal(shards.test_inputs, other.test_inputs)
    assert shards.classes == 10
    if samples == 1500:  # the set that the published figures were measured on
        of_class = np.bincount(np.concatenate([shards.labels, shards.test_labels]))
        assert of_class.tolist() == [161, 142, 151, 158, 146, 140, 147, 149, 136, 170]


def test_whoever_has_too_little_is_given_samples_of_the_largest():
    labels = np.zeros(100, dtype=np.int64)
    for seed in range(20):
        parts = spread(labels, 10, 0.05, np.random.default_rng(seed))
        sizes = sorted(map(len, parts))
        assert sizes[0] == LEAST_SAMPLES
        assert sum(sizes) == 100


def test_clients_without_a_link_or_a_speed_are_left_out_of_a_fedscale_table():
    seconds, kbits = np.array([[10.0, 0.0, 20.0, 30.0]]), np.array([[[1e3], [1e3], [0.0], [4e3]]])
    meta = {"format": "fedscale", "job": "phones"}
    trace = Trace(np.full((1, 4), 1e3), seconds, covariates=kbits, covariate_names=["kbit"], meta=meta)
    population = fedscale(trace, model_bytes=5e5)
    assert population.names == ("0", "3")
    assert population.slope == pytest.approx([0.01, 0.03])
    assert population.bandwidth == pytest.approx([1e6, 4e6])
    assert population.intercept.tolist() == [0.0, 0.0]
    none = Trace(np.full((1, 1), 1e3), [[0.0]], covariates=[[[1e3]]], covariate_names=["kbit"], meta=meta)
    with pytest.raises(ValueError, match="trace 'phones' holds no client with a positive computation"):
        fedscale(none)


def test_phones_follow_the_line_of_their_models_full_size_layer(tmp_path, monkeypatch):
    import pandas as pd

    from paceline.eval.replay.federated import population as clients

    lines = {"a": (0.5, 0.02), "b": (-0.25, 0.08)}  # a step without samples does not take less than no time
    for name in lines:
        (tmp_path / f"{name}_lstm.json").write_text("")

    def read(file, form):
        intercept, slope = lines[file.stem.removesuffix("_lstm")]
        batch = np.array([8.0, 16.0, 32.0])
        full = pd.DataFrame({"batch": batch, "seconds": intercept + slope * batch, "held": clients.FULL_SIZE})
        return pd.concat([full, full.assign(seconds=99.0, held="smaller")])

    monkeypatch.setattr(clients, "read_profiles", read)
    found = phones(2001, tmp_path, seed=0, model_bytes=2e6)
    assert found.devices[:3] == ("a", "b", "a")
    unit = found.slope / np.where(np.arange(2001) % 2, 0.08, 0.02)
    assert np.log(unit).mean() == pytest.approx(0.0, abs=0.03)
    assert np.log(unit).std() == pytest.approx(0.4, abs=0.02)
    assert found.intercept == pytest.approx(np.where(np.arange(2001) % 2, 0.0, 0.5 * unit))
    assert np.median(found.bandwidth) == pytest.approx(10e6, rel=0.05)
    assert np.log(found.bandwidth).std() == pytest.approx(0.6, abs=0.03)
    comm = found.comm_seconds(np.zeros(3000, dtype=np.intp), np.random.default_rng(0))
    assert np.log(comm).mean() == pytest.approx(np.log(2 * 8 * 2e6 / found.bandwidth[0]), abs=0.02)
    assert np.log(comm).std() == pytest.approx(0.2, abs=0.01)
    monkeypatch.setattr(clients, "read_profiles", lambda file, form: read(file, form).assign(held="smaller"))
    with pytest.raises(ValueError, match=r"a_lstm\.json: holds no curve of the full-size layer"):
        phones(2, tmp_path, seed=0)
