"""The busy time of a rank whose device lags behind: what is read once the device has passed it, and what never is."""

import math

import numpy as np
import pytest

from paceline.recording.torch.busy_clock import LATEST, Clock, Measure
from paceline.recording.torch.marks import CPUMarks


class Device:
    """Marks of a device that has passed all moments up to ``reached``; the next mark lies at ``now``."""

    def __init__(self):
        self.now, self.reached = 0, math.inf

    def mark(self):
        return self.now

    def passed(self, mark):
        return mark <= self.reached

    def seconds(self, start, stop):
        return float(stop - start)


class Processor(CPUMarks):
    now = 0

    def mark(self):
        return self.now

    seconds = staticmethod(lambda start, stop: float(stop - start))


def steps(clock, marks, *parts):
    """Take steps of (seconds between, waited between, in the step, waited there, exchange); return their exchanges."""
    waits = []
    for between, waited_between, inside, waited, exchange in parts:
        marks.now += between
        clock.wait_begins()
        marks.now += waited_between
        clock.wait_ends()
        clock.forward(8)
        marks.now += inside
        clock.wait_begins()
        marks.now += waited
        clock.wait_ends()
        waits.append(clock.ready())
        marks.now += exchange
        clock.summed(waits[-1])
    return waits


def told(measure):
    return [None if math.isnan(number) else number for number in measure]


def test_a_step_is_told_once_the_device_has_passed_it():
    marks, reached = Device(), []
    clock = Clock(marks)
    for exchange in (4, 5, 6):
        steps(clock, marks, (1, 0, 10, 0, exchange))
        reached.append(marks.now)
    marks.reached = reached[0] - 4 - 1
    assert told(clock.report()) == [None] * 5
    marks.reached = reached[0] - 4
    assert told(clock.report()) == [8, 1, 1, 10, None], "its exchange is not over"
    marks.reached = reached[0]
    assert told(clock.report()) == [None] * 4 + [4]
    marks.reached = reached[2] - 6
    assert told(clock.report()) == [16, 2, 2, 20 + 2 * 1, 5]
    marks.reached = reached[2]
    assert told(clock.report()) == [None] * 4 + [6]


def test_a_wait_that_is_not_over_counts_as_busy():
    marks = Device()
    clock = Clock(marks)
    steps(clock, marks, (0, 0, 10, 0, 0))
    clock.forward(8)
    marks.now += 5
    clock.wait_begins()  # never ends
    marks.now += 7
    clock.ready()
    assert told(clock.report()) == [16, 2, 2, 10 + 12 + 0, 0]


def test_clock_micro_batches_and_uncounted_steps():
    marks = Processor()
    clock = Clock(marks)
    for features, counts in (((1.0, 2.0), True), ((), True), ((8.0, 9.0), False)):
        clock.forward(8, features=features, counts=counts)
        clock.forward(2, features=features)
        clock.ready()
    assert clock.features == ()
    assert told(clock.report())[:3] == [20, 4, 2]
    assert clock.features == (2.0, 4.0)
    clock.forward(8)
    clock.ready()
    clock.report()
    assert clock.features == ()
    assert Measure(samples=3.0, micro_batches=6.0, steps=2.0).by_steps()[:3] == (3.0, 2.0, 2.0)


def test_collective_in_gradient_wait_is_one_wait():
    marks = Processor()
    clock = Clock(marks)
    steps(clock, marks, (0, 0, 10, 0, 0))
    clock.forward(8)
    clock.ready()
    marks.now += 1
    clock.wait_begins()
    marks.now += 2
    clock.wait_ends()
    clock.wait_ends()
    marks.now += 5
    clock.forward(8)
    clock.ready()
    assert told(clock.report())[3] == 10, "what came but once may be a pause"


def test_given_seconds_replace_measured_once():
    marks = Device()
    marks.reached = -1
    clock = Clock(marks)
    steps(clock, marks, (0, 0, 10, 0, 2), (1, 0, 20, 0, 3))
    clock.measured(5.0)
    clock.measured(7.0)
    marks.reached = math.inf
    assert told(clock.report()) == [16, 2, 2, 12, 3]
    steps(clock, marks, (1, 0, 20, 0, 3))
    assert told(clock.report()) == [8, 1, 1, 21, 3]


class Behind:
    """Marks of a device that is always so many laps behind, each of a forward pass, gradients and their sum."""

    def __init__(self, laps):
        self.lag, self.made = 3 * laps, 0

    def mark(self):
        self.made += 1
        return self.made

    def passed(self, mark):
        return mark <= self.made - self.lag

    def seconds(self, start, stop):
        assert self.passed(stop)
        return float(stop - start)


@pytest.mark.parametrize("laps", [1, LATEST - 1, LATEST, 2 * LATEST, 5 * LATEST])
def test_lagging_device_is_reported(laps):
    """Steps of few and long kernels are launched long before the device gets to them."""
    clock, known = Clock(Behind(laps)), []
    for _ in range(12 * LATEST):
        clock.forward(8)
        clock.summed(clock.ready())
        report = clock.report()
        if np.isfinite(report.samples):
            known.append(report.samples / report.steps)
    assert len(known) >= 2
    assert set(known) == {8.0}
