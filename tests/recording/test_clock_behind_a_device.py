"""The busy time of a rank whose device lags behind: what is read once the device has passed it, and what never is."""

import math
from types import SimpleNamespace

import torch

from paceline.recording.allowance import Spent
from paceline.recording.torch import busy_clock
from paceline.recording.torch.busy_clock import LATEST, Clock, Measure
from paceline.recording.torch.late import Late
from paceline.recording.torch.marks import CPUMarks, CUDAMarks, marks_of

NAN = float("nan")


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


def test_sixteen_steps_wait_for_a_device_and_the_newest_beyond_are_left_out():
    marks = Device()
    clock = Clock(marks)
    marks.reached = -1
    for number in range(LATEST + 3):
        clock.forward(1 << number)
        clock.ready()
    marks.reached = math.inf
    assert LATEST == 16
    assert clock.report()[:3] == (2**16 - 1, 16, 16)


def test_micro_batches_features_and_steps_that_do_not_count():
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


def test_a_collective_while_gradients_are_awaited_is_one_wait_with_them():
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


def test_given_seconds_stand_for_the_measured_ones_once():
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


def test_under_a_quota_time_is_what_lasts_and_the_quota_is_looked_at_anew(monkeypatch):
    spent, looks = Spent(0.0, 0.0), []
    allowance = SimpleNamespace(cores=0.5, spent=lambda: spent, look=lambda: looks.append(1))
    marks = Processor()
    clock = Clock(marks, allowance, threads=2)
    assert (Clock(marks).next_look, clock.next_look) == (math.inf, 0.0)
    monkeypatch.setattr(busy_clock.time, "perf_counter", lambda: 50.0)
    clock.look()
    assert (len(looks), clock.next_look) == (1, 50.1)
    Clock(marks).look()
    clock.forward(8)
    marks.now, spent = 10, Spent(6.0, 0.0)
    clock.ready()
    assert clock.report().seconds == 12.0, "6 s of CPU at half a core"
    marks.now, spent = 14, Spent(6.0, 0.0)
    clock.forward(8)
    marks.now, spent = 24, Spent(7.0, 12.0)
    allowance.cores = math.inf
    clock.ready()
    assert clock.report().seconds == 4.0 + 4.0, "12 s of throttling on two threads are 6 s"


def test_a_late_number_is_taken_once_and_only_after_its_arrival(monkeypatch):
    arrived, streams = [], []
    event = SimpleNamespace(record=streams.append, query=lambda: bool(arrived))
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch, "empty", lambda *shape, dtype, pin_memory: empty(*shape, dtype=dtype))
    late = Late()
    assert (late.under_way, late.take()) == (False, None)
    late.fetch(torch.tensor(2.5, requires_grad=True))
    place = late._place
    assert (late.under_way, late.take(), streams) == (True, None, ["stream of cpu"])
    arrived.append(1)
    assert (late.take(), late.under_way, late.take()) == (2.5, False, None)
    late.fetch(torch.tensor(1 / 3, dtype=torch.float64))
    assert late._place is place
    assert late.take() == 1 / 3
    late.fetch(torch.tensor(7))
    late.forget()
    assert (late.under_way, late.take()) == (False, None)


def test_the_marks_of_a_model_are_those_of_its_device():
    assert isinstance(marks_of(torch.nn.Linear(1, 1)), CPUMarks)
    assert isinstance(marks_of(torch.nn.Identity()), CPUMarks)
    on_device = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=True, device="cuda:1")]))
    found = marks_of(on_device)
    assert isinstance(found, CUDAMarks)
    assert found.device == "cuda:1"
    assert found.seconds(SimpleNamespace(elapsed_time=lambda stop: stop), 2500.0) == 2.5
