"""Parts of the replays against slow definitions: a step on the wire, a step given up, deadlines, clouds, letters."""

import math
from dataclasses import replace
from pydoc_data.topics import topics

import numpy as np
import pytest
from test_federated_lab import SETTING
from test_race import COURSE, Nothing

from paceline.coordinator.asynchronous import SCHEMES, Server, scheme
from paceline.datasets import Trace
from paceline.eval import BareSplit
from paceline.eval.replay.asynchronous import Times, race
from paceline.eval.replay.federated import ClientAssignment, DeadlineDrop, Standard, fedscale, mixture
from paceline.eval.replay.federated.federated_replay import balancer_of
from paceline.eval.replay.federated.federated_schemes import report_round
from paceline.predictors import Forecast, LastValue


@pytest.fixture
def calls(monkeypatch):
    """What a race tells its server, as it does."""
    noted, push, report = [], Server.push, Server.report

    def pushed(server, worker, *given, **times):
        noted.append(("push", worker, *times.values()))
        return push(server, worker, *given, **times)

    def reported(server, *given):
        noted.append(("report", *given))
        return report(server, *given)

    monkeypatch.setattr(Server, "push", pushed)
    monkeypatch.setattr(Server, "report", reported)
    return noted


def test_a_step_computes_from_half_its_time_on_the_wire_at_the_speeds_of_that_time(calls):
    times = Times(np.array([[8.0], [2.0], [16.0], [1.0], [4.0]]), span=1.0, comm_seconds=0.5)
    race(Nothing(), times, scheme("asp", 1), replace(COURSE, epochs=20 * 8 / Nothing.samples))
    wanted, now = [], 0.0
    for _ in range(20):
        took = times.seconds(0, 8, now + 0.25)
        now += took + 0.5
        wanted.append(("push", "worker0", took, 0.5, now))
    assert [call[:2] for call in calls] == [call[:2] for call in wanted]
    np.testing.assert_allclose([call[2:] for call in calls], [call[2:] for call in wanted])
    assert len({round(call[2], 6) for call in wanted}) > 5


def test_a_step_that_is_given_up_reports_what_it_computed_since_it_had_the_model(calls):
    """A round takes 1 s on the wire and 1 s of two workers; the third has computed 1.5 s by then, 1.2 samples."""
    times = Times(8 / np.array([[1.0, 1.0, 10.0]]), span=1000.0, comm_seconds=1.0)
    race(Nothing(), times, SCHEMES["k-sync"](3, 2), replace(COURSE, epochs=32 * 8 / Nothing.samples))
    reports = [call for call in calls if call[0] == "report"]
    assert len(reports) >= 15
    assert {call[:3] for call in reports} == {("report", "worker2", 1)}
    np.testing.assert_allclose([call[3:] for call in reports], [(1.5, 1.0)] * len(reports))


# -- federated ---------------------------------------------------------------------------------------------------


def test_whoever_has_samples_and_steps_is_asked():
    given = ClientAssignment(np.array([0, 1, 1, 2, 0]), np.array([1, 0, 1, 1, 0]), np.ones(5))
    assert given.asked.tolist() == [False, False, True, True, False]
    assert given.deadline == math.inf


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7, 1.0])
def test_a_deadline_is_when_a_share_is_expected_with_its_time_on_the_wire_and_a_tenth_more(share):
    seconds, kbits = np.full((1, 6), 20.0), np.full((1, 6, 1), 8e3)
    clients = Trace(
        *(np.ones((1, 6)), seconds / 1000),
        covariates=kbits,
        covariate_names=["communication_kbps"],
        workers=[f"c{k}" for k in range(6)],
        meta={"format": "fedscale"},
    )
    population = fedscale(clients, model_bytes=1e5)
    balancer = balancer_of(population, mixture(6, None, seed=0, samples=600), SETTING)
    names = list(population.names)
    comm = np.array([9.0, 0.1, 6.0, 0.1, 3.0, 0.1])
    for _ in range(3):
        report_round(balancer, names, Standard().assign(balancer, names), np.arange(1.0, 7.0), comm, np.ones(6, bool))
    plan = balancer.plan(names)
    sizes = [int(min(SETTING.batch, max(most, 0))) for most in plan.upper]
    expected = [
        size * plan.local_steps / speed + wire
        for size, speed, wire in zip(sizes, plan.speed, plan.comm_seconds, strict=True)
    ]
    deadline = sorted(expected)[math.ceil(share * 5)]
    given = DeadlineDrop(share).assign(balancer, names)
    assert given.deadline == pytest.approx(1.1 * deadline)
    assert given.sizes.tolist() == [size * (time <= deadline) for size, time in zip(sizes, expected, strict=True)]
    assert given.steps.tolist() == [plan.local_steps] * 6
    assert given.rates.tolist() == [1.0] * 6


def test_each_sample_of_the_mixture_is_near_the_centre_of_a_cloud_of_its_own_class():
    rng, samples = np.random.default_rng(20), 900
    centre = rng.normal(0.0, 0.75, (10, 3, 32))
    labels, cloud = rng.integers(10, size=samples), rng.integers(3, size=samples)
    noise = rng.standard_normal((samples, 32))
    wanted = sorted((int(c), (centre[c, k] + off).tolist()) for c, k, off in zip(labels, cloud, noise, strict=True))
    made = mixture(4, None, seed=5, samples=samples)
    inputs = np.concatenate([made.inputs, made.test_inputs]).tolist()
    found = sorted(zip(np.concatenate([made.labels, made.test_labels]).tolist(), inputs, strict=True))
    assert [label for label, _ in found] == [label for label, _ in wanted]
    np.testing.assert_allclose([point for _, point in found], [point for _, point in wanted])


# -- letters -----------------------------------------------------------------------------------------------------


def test_letters_are_pieces_of_pythons_help_of_which_every_fourth_is_held_out():
    torch = pytest.importorskip("torch")
    from paceline.eval.replay.asynchronous.replay_tasks import Letters
    from paceline.eval.replay.asynchronous.transformer import Transformer

    length, count = 5, 40
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")[: length * count]
    alphabet = sorted(set(text))
    pieces = [[alphabet.index(text[length * k + n]) for n in range(length)] for k in range(count)]
    kept = torch.tensor([piece for k, piece in enumerate(pieces) if k % 4])
    held = torch.tensor([piece for k, piece in enumerate(pieces) if k % 4 == 0])
    ours, model = Letters(length=length, count=count), Transformer(letters=len(alphabet), length=length)
    start = ours.start(3)
    assert ours.samples == len(kept) == 30
    np.testing.assert_array_equal(start, model.start(3))
    rows = np.array([0, 7, 29])
    np.testing.assert_allclose(ours.gradient(start, rows), model.gradient(start, kept[rows]), atol=1e-6)
    assert ours.accuracy(start) == pytest.approx(model.accuracy(start, held))


def test_a_bare_split_follows_every_forecast_down_to_one_sample():
    class Far(LastValue):
        def predict(self, covariates=None, *, horizon=1):
            return Forecast(np.array([100.0, 100.0, 0.5]), np.full(3, 0.1))

    scheme = BareSplit(Far())
    scheme.reset(["a", "b", "c"], 21)
    assert scheme.sizes(0, None).tolist() == [10, 10, 1]
