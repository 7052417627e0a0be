"""The event-driven replay: real gradients, at the times that a fleet's speeds dictate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import saps, scheme
from paceline.coordinator.asynchronous.schemes import MeanAggregation
from paceline.datasets import Trace
from paceline.eval.asynchronous import AsyncRunSettings, FleetTimes, simulate_training

COURSE = AsyncRunSettings(batch=8, rate=0.05, epochs=1.0, num_evaluations=6)


class Nothing:
    """A task without anything to learn: only the order of events counts."""

    samples = 4096

    def start(self, seed):
        return np.zeros(1)

    def gradient(self, parameters, rows):
        return np.zeros(1)

    def accuracy(self, parameters):
        return 0.0


def fleet(*seconds, comm_seconds=0.0, batch=8):
    """Workers that take so long for a full batch."""
    return FleetTimes(batch / np.array([seconds]), span_seconds=1000.0, comm_seconds=comm_seconds)


def ran(name, times, updates=64, **options):
    rules = scheme(name, times.workers) if isinstance(name, str) else name
    return simulate_training(Nothing(), times, rules, replace(COURSE, epochs=updates * 8 / Nothing.samples, **options))


def test_bsp_waits_for_slowest_and_wire():
    done = ran("bsp", fleet(1.0, 4.0, comm_seconds=0.5))
    assert done.server.version == 32
    assert done.seconds[-1] == pytest.approx(32 * 4.5)
    assert done.waiting == pytest.approx([3.0 / 4.5, 0.0])


def test_asp_pushes_at_own_pace():
    done = ran("asp", fleet(1.0, 4.0), updates=50)
    assert done.seconds[-1] == pytest.approx(40.0)  # in 4 s four steps of the one and one of the other
    assert done.server.ledger.accounts["worker0"].applied == 40 * 8
    assert done.server.ledger.largest_staleness == 4
    assert done.waiting.tolist() == [0.0, 0.0]


@pytest.mark.slow
def test_balanced_batches_end_together():
    equal, balanced = (ran(name, fleet(1.0, 3.0), updates=200) for name in ("bsp", "lb-bsp"))
    # 16 samples at 8 and 8/3 a second: 12 and 4 take 1.5 s where equal batches take 3 s.
    assert equal.seconds[-1] / balanced.seconds[-1] == pytest.approx(2.0, abs=0.05)


def test_k_sync_cancels_and_backup_wastes():
    canceled = ran(replace(scheme("k-sync", 3), aggregation=MeanAggregation(2)), fleet(1.0, 1.0, 10.0))
    late = ran(replace(scheme("backup", 3), aggregation=MeanAggregation(2)), fleet(1.0, 1.0, 10.0))
    assert canceled.seconds[-1] == late.seconds[-1] == pytest.approx(32.0)
    assert canceled.server.ledger.wasted_share == pytest.approx(1 / 3, abs=0.02)
    assert late.server.ledger.wasted_share == pytest.approx(3 / 67, abs=0.02)


@pytest.mark.slow
def test_staleness_is_as_forecast():
    done = ran("asp", fleet(1.0, 2.0, 3.0, 7.0), updates=600)
    assert done.server.staleness == pytest.approx(done.server.expected_staleness, abs=1.0)


@pytest.mark.slow
@given(
    seconds=st.lists(st.floats(0.1, 20.0), min_size=2, max_size=8),
    bound=st.integers(0, 30),
    noise=st.floats(0.0, 1.0),
)
@settings(max_examples=25)
def test_saps_bound_holds_without_waiting(seconds, bound, noise):
    rng = np.random.default_rng(0)
    speed_TW = 8 / np.array(seconds) * np.exp(rng.normal(0, noise, (50, len(seconds))))
    done = ran(saps(len(seconds), bound=bound), FleetTimes(speed_TW, span_seconds=1.0, comm_seconds=0.1), updates=40)
    assert done.server.ledger.largest_staleness <= bound
    assert not done.waiting.any()


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), st.floats(0.1, 500.0), st.floats(0.0, 50.0))
def test_samples_invert_seconds(speeds, samples, start):
    times = FleetTimes(np.array(speeds)[:, None], span_seconds=0.7, comm_seconds=0.0)
    took = times.seconds(0, samples, start)
    assert times.samples(0, start, start + took) == pytest.approx(samples, rel=1e-6)


def test_times_fill_gaps_and_repeat_workers():
    trace = Trace([[1.0, 1.0]] * 4, [[1.0, np.nan], [np.nan, 2.0], [1.0, 2.0], [0.5, 2.0]])
    times = FleetTimes.from_trace(trace, workers=4, batch=1)
    usual = np.median(times.speed[:, :2])
    assert times.speed[:, 0] / usual == pytest.approx(np.array([1.0, 1.0, 1.0, 2.0]) / 0.75)
    assert (times.speed[:, 0] != times.speed[:, 2]).any()
    assert sorted(times.speed[:, 0]) == pytest.approx(sorted(times.speed[:, 2]))


class Diverging(Nothing):
    """A task whose gradients overflow after some steps."""

    def gradient(self, parameters, rows):
        return np.array([1.0 if abs(parameters[0]) < 1.0 else np.inf])


def test_diverging_training_has_no_accuracy():
    done = simulate_training(Diverging(), fleet(1.0, 2.0), scheme("asp", 2), COURSE)
    assert done.accuracy[-1] == 0.0
    assert np.isinf(done.seconds_to_accuracy(0.9))


class Scripted(Nothing):
    """A task whose accuracies are given beforehand."""

    def __init__(self, accuracies):
        self.accuracies = iter(accuracies)

    def accuracy(self, parameters):
        return next(self.accuracies)


SCRIPTS = st.lists(st.sampled_from([0.1, 0.2, 0.6, 0.7, 0.8]), min_size=13, max_size=13)


@given(SCRIPTS, st.sampled_from([0.5, 0.65, np.inf]))
@settings(max_examples=30)
def test_race_ends_when_good_or_over(accuracies, enough):
    course = replace(COURSE, epochs=48 * 8 / 4096, num_evaluations=12, target_accuracy=enough)
    done = simulate_training(Scripted(accuracies), fleet(1.0), scheme("asp", 1), course)
    ends = next((k for k in range(2, 13) if sum(accuracies[k - 2 : k + 1]) / 3 >= enough), 12)
    assert done.accuracy.tolist() == accuracies[: ends + 1]
    assert done.seconds.tolist() == pytest.approx([4.0 * k for k in range(ends + 1)])
    last = done.accuracy.tolist()
    for wanted in (0.15, 0.5, 0.7):
        reached = [k for k in range(2, len(last)) if sum(last[k - 2 : k + 1]) / 3 >= wanted - 1e-12]
        sure = all(abs(sum(last[k - 2 : k + 1]) / 3 - wanted) > 1e-9 for k in range(2, len(last)))
        assert not sure or done.seconds_to_accuracy(wanted) == (done.seconds[reached[0]] if reached else np.inf)


@pytest.mark.parametrize(("span", "comm"), [(0.0, 0.0), (-1.0, 0.0), (np.inf, 0.0), (1.0, -0.1), (1.0, np.inf)])
def test_times_refuse_bad_span_or_wire(span, comm):
    with pytest.raises(ValueError, match=f"span_seconds must be > 0 and comm_seconds >= 0, got {span} and {comm}"):
        FleetTimes(np.ones((2, 1)), span_seconds=span, comm_seconds=comm)


@pytest.mark.parametrize("speed", [[1.0], [[0.0]], [[np.inf]], [[np.nan]]])
def test_times_refuse_bad_speed(speed):
    with pytest.raises(ValueError, match=r"speed must be \[T, W\], finite and above 0"):
        FleetTimes(np.array(speed), span_seconds=1.0, comm_seconds=0.0)
