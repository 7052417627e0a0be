"""Races and federated rounds of made fleets are what they were: times, waiting, what was learnt, every draw."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept

from paceline.coordinator.asynchronous import SCHEMES, scheme
from paceline.datasets import Trace
from paceline.eval.replay.asynchronous import Course, Times, graded_fleet, race, task
from paceline.eval.replay.asynchronous.race import SMOOTHED, Race, _smoothed
from paceline.eval.replay.asynchronous.replay_tasks import TASKS
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
)
from paceline.eval.replay.federated import population as populations
from paceline.predictors import LastValue

KEPT = Path(__file__).parent / "labs.json"
NAN = float("nan")


class Bowl:
    """Points in a bowl: whoever comes nearer to their middle is more accurate."""

    samples = 96

    def __init__(self):
        self.points = np.random.default_rng(5).normal(size=(self.samples, 3))

    def start(self, seed):
        return np.random.default_rng(seed).normal(3.0, 1.0, 3)

    def gradient(self, parameters, rows):
        return parameters - self.points[rows].mean(axis=0)

    def accuracy(self, parameters):
        return float(1 / (1 + np.square(parameters - self.points.mean(axis=0)).sum()))


TIMES = Times.of(graded_fleet(4, rows=30, seed=2), workers=5, batch=8, comm_share=0.3)
COURSE = Course(batch=8, rate=0.2, epochs=3.5, seed=3, evaluations=9)


def ran_as(found):
    ledger, seen = found.server.ledger, found.server.calibration
    accounts = {name: sorted(vars(one).items()) for name, one in ledger.accounts.items()}
    told = [found.seconds, found.accuracy, found.waiting, found.server.parameters, found.server.version]
    return [*told, accounts, seen.forecast, seen.actual, seen.covered, found.final, found.seconds_to(0.5)]


@pytest.mark.parametrize("name", SCHEMES)
def test_a_race_is_what_it_was(name):
    require_kept(KEPT, f"race {name}", ran_as(race(Bowl(), TIMES, scheme(name, 5), COURSE)))


def test_a_race_ends_early_where_it_is_good_enough_or_hopeless_and_takes_the_predictor_given():
    def asp(**course):
        return race(Bowl(), TIMES, scheme("asp", 5), replace(COURSE, **course))

    found = {"enough": asp(enough=0.5), "hopeless": asp(hopeless=0.9), "hopeful": asp(hopeless=0.01)}
    found |= {"seeded": asp(seed=4), "usual": asp(evaluations=60, epochs=1)}
    balanced = race(Bowl(), TIMES, scheme("lb-bsp", 5), COURSE, LastValue())
    require_kept(KEPT, "races", {name: ran_as(one) for name, one in (found | {"last value": balanced}).items()})


def test_whoever_still_waits_at_the_end_has_waited_until_then():
    class Breaks(Bowl):
        """The second gradient of the second worker is no number, while the first one waits for it."""

        asked = 0

        def gradient(self, parameters, rows):
            self.asked += 1
            return super().gradient(parameters, rows) * (NAN if self.asked == 3 else 1.0)

    found = race(Breaks(), Times(8 / np.array([[1.0, 4.0]]), span=100.0, comm_seconds=0.0), scheme("bsp", 2), COURSE)
    assert found.seconds[-1] == 8.0
    assert found.accuracy[-1] == 0.0
    assert found.waiting == pytest.approx([6 / 8, 0.0])


def test_accuracies_are_smoothed_over_three_and_the_end_is_the_last_tenth():
    assert SMOOTHED == 3
    assert _smoothed(np.array([0.3, 0.6, 0.9, 0.0])) == pytest.approx([0.0, 0.0, 0.6, 0.5])
    assert _smoothed(np.array([0.3, 0.6])).tolist() == [0.0, 0.0]
    assert _smoothed(np.array([0.3, 0.6, 0.9])) == pytest.approx([0, 0, 0.6])
    accuracy = np.arange(29.0)
    found = Race(10 * accuracy, accuracy, np.zeros(1), None)
    assert found.final == 27.5
    assert (found.seconds_to(8.5), found.seconds_to(26.5), found.seconds_to(27.1)) == (100.0, 280.0, np.inf)


def test_fleets_and_their_times_are_what_they_were():
    fleet = graded_fleet(6, rows=5)
    holed = Trace(np.ones((4, 2)), [[NAN, 1.0], [2.0, NAN], [NAN, 3.0], [4.0, 4.0]])
    filled = Times.of(holed, workers=5, batch=16)
    assert (filled.span, filled.comm_seconds, fleet.meta) == (1.0, 0.1, {"job": "1x/2x/4x/8x", "source": "synthetic"})
    times = [TIMES.seconds(2, 20, start) for start in (0.0, 0.5, 29.75, 61.0)]
    samples = [TIMES.samples(1, start, start + 3.3) for start in (0.0, 0.5, 29.75)]
    require_kept(KEPT, "fleets", [fleet.speed, fleet.samples[0], graded_fleet(3, rows=2, noise=0.3, seed=1).speed])
    require_kept(KEPT, "times", [filled.speed, TIMES.speed[:3], TIMES.comm_seconds, times, samples])


@pytest.mark.parametrize("hidden", [0, 5])
def test_the_accuracy_on_digits_is_the_share_of_held_out_ones_that_score_highest(hidden):
    pytest.importorskip("sklearn")
    from paceline.eval.replay.asynchronous.replay_tasks import Perceptron

    ours = Perceptron(hidden)
    assert (len(ours.inputs), len(ours.held_inputs), ours.samples) == (1347, 450, 1347)
    assert (ours.inputs[:, -1] == 1).all()
    pixels = np.concatenate([ours.inputs, ours.held_inputs])[:, :-1]
    assert [pixels.mean(), pixels.std()] == pytest.approx([0, 1], abs=1e-4)
    start = ours.start(7)
    assert (start.dtype, len(start)) == (np.float32, 65 * hidden + (hidden + 1) * 10 if hidden else 650)
    require_kept(
        KEPT, f"start of {hidden}", [start[:4], start[-4:], start.std(), ours.labels[:9], ours.held_labels[:9]]
    )
    first = start[: 65 * hidden].reshape(65, hidden) if hidden else None
    last = start[-10 * (hidden + 1 if hidden else 65) :].reshape(-1, 10)
    right = 0
    for pixel, label in zip(ours.held_inputs, ours.held_labels, strict=True):
        units = np.append(np.maximum(pixel @ first, 0), 1) if hidden else pixel
        right += int(np.argmax(units @ last)) == label
    assert ours.accuracy(start) == pytest.approx(right / 450)


def test_tasks_are_built_once_and_unknown_ones_refused():
    pytest.importorskip("sklearn")
    assert task("digits-mlp") is task("digits-mlp")
    assert task("digits-mlp").shapes == [(65, 32), (33, 10)]
    assert list(TASKS) == ["digits-logistic", "digits-mlp", "letters-transformer"]
    with pytest.raises(ValueError, match=r"task must be one of \['digits-logistic', .*, got 'other'"):
        task("other")


# -- federated -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(8)
    seconds, kbits = rng.uniform(0.01, 0.08, (1, 8)), rng.uniform(1e3, 8e3, (1, 8, 1))
    table = Trace(
        *(np.full((1, 8), 2.0), 2 * seconds),
        covariates=kbits,
        covariate_names=["communication_kbps"],
        meta={"format": "fedscale"},
    )
    moving = Trace(np.ones((7, 2)), rng.uniform(1, 4, (7, 2)))
    return fedscale(table, model_bytes=2e4).moved_by([moving], seed=2)


SETTING = RoundSetting(participation=0.6, rounds=5, batch=6, local_steps=3, rate=0.3, seed=4, met_before=1)


@pytest.mark.parametrize("kind", [Standard, BalancedClients, AdaptiveSteps, AdaptiveRate, DeadlineDrop])
def test_federated_rounds_are_what_they_were(clients, kind):
    moments = iter_rounds(clients, mixture(8, 0.5, seed=1, samples=600), kind(), SETTING)
    require_kept(KEPT, f"rounds {kind.__name__}", [list(vars(moment).values()) for moment in moments])


@pytest.mark.parametrize("met", [0, 2])
def test_rounds_without_training_are_what_they_were(clients, met):
    told = {"rate": 0.0, "predictor": LastValue(), "risk": 0.5, "least": 2, "met_before": met}
    moments = iter_rounds(clients, mixture(8, None, seed=1, samples=600), BalancedClients(), replace(SETTING, **told))
    require_kept(KEPT, f"timed rounds {met}", [list(vars(moment).values()) for moment in moments])


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_buffered_rounds_are_what_they_were(clients, share):
    setting = replace(SETTING, participation=share, rounds=4)
    moments = iter_buffered(clients, mixture(8, 0.5, seed=1, samples=600), setting)
    require_kept(KEPT, f"buffered {share}", [list(vars(moment).values()) for moment in moments])


def test_no_fewer_than_one_client_is_chosen_and_half_of_five_are_two():
    assert [RoundSetting(participation=share).chosen(5) for share in (0.01, 0.3, 0.5, 0.7, 1.0)] == [1, 2, 2, 4, 5]


def test_populations_are_what_they_were(clients, tmp_path, monkeypatch):
    curves = {"fast": (0.5, 0.01), "slow": (1.0, 0.04)}
    monkeypatch.setattr(populations, "_curve", lambda file: curves[file.stem.removesuffix("_lstm")])
    for name in curves:
        (tmp_path / f"{name}_lstm.json").write_text("")
    made = phones(5, tmp_path, seed=3)
    assert (made.model_bytes, len(made), made.names[4]) == (1e6, 5, "client-4")
    assert made.devices == ("fast", "slow", "fast", "slow", "fast")
    assert (made.slowdown.tolist(), made.worker.tolist(), made.offset.tolist()) == ([[1.0]], [0] * 5, [0] * 5)
    rows, sizes, steps = np.array([1, 5]), np.array([4, 9]), np.array([3, 0])
    compute = [clients.compute_seconds(rows, sizes, steps, position) for position in (0, 2, 9)]
    comm = clients.comm_seconds(rows, np.random.default_rng(0))
    found = [made.intercept, made.slope, made.bandwidth, clients.worker, clients.offset, compute, comm]
    require_kept(KEPT, "populations", found)
    assert clients.compute_seconds(rows, sizes, np.array([0, 0]), 1).tolist() == [0, 0]
    assert clients.devices == ("",) * 8


def test_shards_and_networks_are_what_they_were():
    pytest.importorskip("sklearn")
    found = []
    for made in (digits(7, 0.3, seed=2), mixture(5, 0.2, seed=2, samples=200), mixture(4, None, seed=2, samples=100)):
        own = [rows[:3] for rows in made.shard]
        found.append([made.name, made.amounts, made.classes, own, made.labels[:9], made.test_labels[:9]])
        found.append([len(made.test_labels), made.inputs.mean(), made.inputs[0, :9], made.test_inputs[-1, -9:]])
    network = SmallNetwork.drawn(6, 3, seed=1)
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(7, 6)), rng.integers(3, size=7)
    trained = network.trained(inputs, labels, batch=3, steps=5, rate=0.5, generator=np.random.default_rng(2))
    sums = [[one.sum(), np.abs(one).sum(), *one.shape] for one in (*network.weights, *trained.weights)]
    moved = network.moved([trained.minus(network), network], [0.5, -0.25])
    both = zip(moved.weights, network.weights, trained.weights, strict=True)
    for now, before, after in both:
        np.testing.assert_allclose(now, 0.25 * before + 0.5 * after)
    require_kept(KEPT, "shards", [found, sums, trained.accuracy(inputs, labels)])
