"""The busy time of a rank: a lap counts for the batch that caused it, and once a device has passed it."""

import math

import numpy as np
import pytest

from paceline.recording.torch.busy_time import MAX_LAPS, BusyTimer, CPUEvents


class CPU(CPUEvents):
    now = 0.0

    def record(self):
        return self.now

    seconds = staticmethod(lambda start, stop: stop - start)


class Device(CPU):
    """A device that is never behind, but is asked as one that may be."""


class Loop:
    """A training loop whose parts take a time for each sample, a fixed time, or both, in milliseconds."""

    def __init__(self, events, ahead=0, processes=None):
        self.events, self.timer, self.ahead, self.processes = events, BusyTimer(events), ahead, processes
        self.out, self.last = [], 0

    def spend(self, part, samples, costs):
        fixed, each = costs.get(part, (0, 0))
        self.events.now += fixed + each * samples

    def fetch(self, samples, costs):
        self.timer.load_begins()
        self.spend("load", samples, costs)
        self.timer.load_ends(*(self.processes(samples) if self.processes else ()))
        self.timer.add_batch(samples)
        self.out.append(samples)

    def step(self, samples, costs, pause=0, body_pause=0):
        """Take a step, where the newest batch fetched has so many samples; return samples and seconds reported."""
        self.spend("after", self.last, costs)
        self.events.now += pause
        while len(self.out) <= self.ahead:
            self.fetch(samples, costs)
        computed = self.last = self.out.pop(0)
        self.spend("body", computed, costs)
        self.events.now += body_pause
        self.timer.forward_begins(computed)
        self.spend("inside", computed, costs)
        wait = self.timer.gradients_ready()
        self.events.now += 7  # for the others
        self.timer.gradients_summed(wait)
        self.spend("optimizer", computed, costs)
        measure = self.timer.report()
        return measure.samples, measure.seconds


@pytest.fixture(params=[CPU, Device])
def events(request):
    return request.param()


SIZES = [32, 32, 32, 8, 8, 40, 20, 20, 30, 10, 50, 5, 5]


@pytest.mark.parametrize("part", ["load", "body", "inside"])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_timer_counts_time_for_its_batch(events, part, ahead):
    loop = Loop(events, ahead)
    costs = {part: (0, 2), "inside": (3, 2 if part == "inside" else 0), "optimizer": (4, 0)}
    reports = [loop.step(size, costs) for size in SIZES]
    known = [report for report in reports[2:] if not math.isnan(report[1])]
    assert len(known) >= len(reports) - 3, "the lap after the first change of size may not count"
    for samples, seconds in known:
        assert seconds == pytest.approx(7 + 2 * samples)


def test_timer_learns_batch_part_after_a_step(events):
    """Metrics or a second model come after the gradients are summed: before that the time counts as fixed."""
    loop, costs = Loop(events), {"after": (4, 2), "inside": (3, 0)}
    reports = [loop.step(size, costs) for size in SIZES * 3]
    for samples, seconds in reports[20:]:
        assert seconds == pytest.approx(7 + 2 * samples, rel=0.15)


@pytest.mark.parametrize("where", ["pause", "body_pause"])
@pytest.mark.parametrize("length", [60, 1000, 60_000])
def test_timer_leaves_pauses_out(events, where, length):
    loop, costs = Loop(events), {"body": (0, 1), "inside": (3, 1), "optimizer": (2, 0)}
    reports = [loop.step(32, costs, **({where: length} if n % 10 == 9 else {})) for n in range(40)]
    assert {seconds for _, seconds in reports[2:]} == {3 + 2 + 2 * 32}


def test_pause_at_first_size_change_teaches_nothing(events):
    """The time after the step before, of the old size, is part of that lap; nobody knows yet how much it is."""
    loop, costs = Loop(events), {"after": (4, 2), "inside": (30, 0)}
    for _ in range(6):
        loop.step(32, costs)
    assert math.isnan(loop.step(8, costs, pause=500)[1])
    assert loop.step(8, costs)[1] == 30 + 4 + 2 * 8


@pytest.mark.parametrize("part", ["load", "body", "inside"])
def test_timer_counts_a_lasting_change_at_once(events, part):
    loop = Loop(events)
    costs = [{part: (0, 1), "inside": (3, 1)}] * 10 + [{part: (0, 6), "inside": (3, 6)}] * 10
    seconds = [loop.step(16, cost)[1] for cost in costs]
    slow = 16 * 6 + 3 if part == "inside" else 16 * 12 + 3
    assert seconds[11:] == [slow] * 9, "the second slow lap shows that the first was no pause"


def test_timer_takes_longer_of_loading_and_rank(events):
    """The wait for them follows what other ranks do; what they need for a batch does not."""
    loop = Loop(events, processes=lambda samples: (6.0, 2.0 * samples))
    costs = {"load": (6, 0), "inside": (20, 0)}
    reports = [loop.step(size, costs) for size in SIZES]
    assert [seconds for _, seconds in reports[1:]] == [max(20.0, 2.0 * samples) for samples, _ in reports[1:]]


# -- a device that lags behind: what is read once it has passed a step, and what never is ---------------------------


class Lagging:
    """Events of a device that has passed all moments up to ``reached``; the next event lies at ``now``."""

    def __init__(self):
        self.now, self.reached = 0, math.inf

    def record(self):
        return self.now

    def has_passed(self, event):
        return event <= self.reached

    def seconds(self, start, stop):
        return float(stop - start)


class Unhurried(CPUEvents):
    now = 0

    def record(self):
        return self.now

    seconds = staticmethod(lambda start, stop: float(stop - start))


def take_steps(timer, events, *parts):
    """Take steps of (seconds between, waited between, in the step, waited there, exchange); return their exchanges."""
    waits = []
    for between, waited_between, inside, waited, exchange in parts:
        events.now += between
        timer.wait_begins()
        events.now += waited_between
        timer.wait_ends()
        timer.forward_begins(8)
        events.now += inside
        timer.wait_begins()
        events.now += waited
        timer.wait_ends()
        waits.append(timer.gradients_ready())
        events.now += exchange
        timer.gradients_summed(waits[-1])
    return waits


def told(measure):
    return [None if math.isnan(number) else number for number in measure]


def test_a_step_is_told_once_the_device_has_passed_it():
    events, reached = Lagging(), []
    timer = BusyTimer(events)
    for exchange in (4, 5, 6):
        take_steps(timer, events, (1, 0, 10, 0, exchange))
        reached.append(events.now)
    events.reached = reached[0] - 4 - 1
    assert told(timer.report()) == [None] * 5
    events.reached = reached[0] - 4
    assert told(timer.report()) == [8, 1, 1, 10, None], "its exchange is not over"
    events.reached = reached[0]
    assert told(timer.report()) == [None] * 4 + [4]
    events.reached = reached[2] - 6
    assert told(timer.report()) == [16, 2, 2, 20 + 2 * 1, 5]
    events.reached = reached[2]
    assert told(timer.report()) == [None] * 4 + [6]


def test_a_wait_that_is_not_over_counts_as_busy():
    events = Lagging()
    timer = BusyTimer(events)
    take_steps(timer, events, (0, 0, 10, 0, 0))
    timer.forward_begins(8)
    events.now += 5
    timer.wait_begins()  # never ends
    events.now += 7
    timer.gradients_ready()
    assert told(timer.report()) == [16, 2, 2, 10 + 12 + 0, 0]


def test_timer_micro_batches_and_uncounted_steps():
    events = Unhurried()
    timer = BusyTimer(events)
    for features, counts in (((1.0, 2.0), True), ((), True), ((8.0, 9.0), False)):
        timer.forward_begins(8, features=features, in_report=counts)
        timer.forward_begins(2, features=features)
        timer.gradients_ready()
    assert timer.features == ()
    assert told(timer.report())[:3] == [20, 4, 2]
    assert timer.features == (2.0, 4.0)
    timer.forward_begins(8)
    timer.gradients_ready()
    timer.report()
    assert timer.features == ()


def test_collectives_in_gradient_wait_are_one_wait(events):
    """HSDP on CPUs: several collectives wait, one after the other, before the gradients of all replicas are summed."""
    timer, own = BusyTimer(events), []
    for _ in range(4):
        timer.forward_begins(8)
        events.now += 10
        gradients = timer.gradients_ready()
        own.append(timer.report().seconds)
        for seconds in (2, 30):
            timer.wait_begins()
            events.now += seconds
            timer.wait_ends()
        events.now += 1
        timer.gradients_summed(gradients)
    assert own == [10] * 4


class Behind:
    """Events of a device that is always so many laps behind, each of a forward pass, gradients and their sum."""

    def __init__(self, laps):
        self.lag, self.made = 3 * laps, 0

    def record(self):
        self.made += 1
        return self.made

    def has_passed(self, event):
        return event <= self.made - self.lag

    def seconds(self, start, stop):
        assert self.has_passed(stop)
        return float(stop - start)


@pytest.mark.parametrize("laps", [1, MAX_LAPS - 1, MAX_LAPS, 2 * MAX_LAPS, 5 * MAX_LAPS])
def test_lagging_device_is_reported(laps):
    """Steps of few and long kernels are launched long before the device gets to them."""
    timer, known = BusyTimer(Behind(laps)), []
    for _ in range(12 * MAX_LAPS):
        timer.forward_begins(8)
        timer.gradients_summed(timer.gradients_ready())
        report = timer.report()
        if np.isfinite(report.samples):
            known.append(report.samples / report.steps)
    assert len(known) >= 2
    assert set(known) == {8.0}
