"""The benchmark's races of many copies at once: each copy is what it would be alone, at the times of the replay."""

from pathlib import Path

import numpy as np
import pytest

from paceline.coordinator.asynchronous import scheme
from paceline.eval.replay import asynchronous as replay

pytestmark = pytest.mark.checkout

TIMES = replay.Times.of(replay.graded_fleet(4), workers=4, batch=8)
SEEDS, RATES = np.array([0, 0, 1, 2]), np.array([0.05, 0.1, 0.05, 50.0])


@pytest.fixture
def races(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import asynchronous_problems
    import asynchronous_race

    def run(name, seeds, rates, batch=8, epochs=1.0, momentum=0.0):
        import torch

        course = asynchronous_race.Course(
            problem=asynchronous_problems.digits(8, 2.0),  # never reached: it goes on to its end
            times=TIMES,
            batch=batch,
            epochs=epochs,
            optimizer=(lambda place: torch.optim.SGD(place, lr=1.0, momentum=momentum)) if momentum else None,
        )
        return asynchronous_race.Race(course, scheme(name, 4), seeds, rates).run()

    return run


@pytest.mark.parametrize(("name", "momentum"), [("saps", 0.0), ("dc-asgd-a", 0.0), ("asp", 0.9)])
@pytest.mark.slow
def test_a_copy_is_trained_as_it_would_be_alone_and_one_that_diverges_leaves_the_others_alone(races, name, momentum):
    rates = RATES * (1 - momentum)
    together = races(name, SEEDS, rates, momentum=momentum)
    parameters_SP = together.server.parameters.reshape(len(SEEDS), -1)
    for copy, (seed, rate) in enumerate(zip(SEEDS[:3], rates[:3], strict=True)):
        alone = races(name, np.array([seed]), np.array([rate]), momentum=momentum)
        assert parameters_SP[copy] == pytest.approx(alone.server.parameters, rel=1e-3, abs=1e-4)
        assert together.curve[0].tolist() == alone.curve[0].tolist()
    assert together.final[3] < 0.5
    assert together.final[:3].min() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["saps", "asp", "bsp", "k-sync"])
def test_steps_come_at_the_times_of_the_replay(races, name):
    ours = races(name, SEEDS[:1], RATES[:1])
    course = replay.Course(batch=8, rate=0.05, epochs=1.0)
    theirs = replay.race(replay.task("digits-logistic"), TIMES, scheme(name, 4), course)
    assert ours.server.version == theirs.server.version
    np.testing.assert_array_equal(ours.server.staleness, theirs.server.staleness)
    np.testing.assert_array_equal(ours.server.sizes, theirs.server.sizes)
