"""The parts of a training step are told apart to the tick, whatever the order in which they come."""

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from paceline.recording.recorder import Step
from paceline.recording.torch.marks import CPUMarks
from paceline.recording.torch.stopwatch import PHASES, Stopwatch

torch = pytest.importorskip("torch")

TICKS = st.integers(0, 9)


class Ticks(CPUMarks):
    """Marks of a clock that the test moves; one that lags behind has passed nothing that is too young."""

    def __init__(self, lag=0):
        self.now, self.lag, self.waited = 0.0, lag, 0

    def mark(self):
        return self.now

    def passed(self, mark):
        return self.now - mark >= self.lag

    def wait(self, mark):
        self.now, self.waited = max(self.now, mark + self.lag), self.waited + 1

    def seconds(self, start, stop):
        return stop - start


def stopwatch(marks):
    """Return a stopwatch with these marks, and the rows that it writes."""
    rows = []
    recorder = SimpleNamespace(
        begin=lambda: Step((), marks.now), write=lambda step, samples, work: rows.append((step, samples, work))
    )
    watch = Stopwatch(torch.nn.Linear(1, 1), recorder)
    watch._marks = marks
    return watch, rows


MICRO = st.fixed_dictionaries(
    {
        "samples": st.integers(1, 9),
        "work": st.integers(1, 9),
        "forward": TICKS,
        "wait in forward": st.none() | TICKS,
        "backward": TICKS,
        "wait after": st.none() | TICKS,
        "ready": TICKS,
        "done": st.lists(TICKS, max_size=3),
    }
)
ITERATION = st.tuples(TICKS, st.lists(MICRO, min_size=1, max_size=3), TICKS, TICKS)


class Played:
    """Plays iterations to a stopwatch, and adds up what it should tell."""

    def __init__(self, watch, marks):
        self.watch, self.marks, self.ended = watch, marks, None
        self.hook = watch.timed(lambda state, bucket: state)
        assert watch.times_exchanges, "no other hook is registered"

    def exchange(self, ready, done):
        """Exchange buckets: each but the last is under way when the next one is ready."""
        futures = [torch.futures.Future() for _ in done]
        for k, (future, seconds) in enumerate(zip(futures, done, strict=True)):
            self.marks.now += ready
            self.hook(future, SimpleNamespace(is_last=lambda k=k: k == len(done) - 1))
            if k % 2:
                self.marks.now += seconds
                future.set_result(torch.zeros(1))
        began = self.marks.now
        for future, seconds in list(zip(futures, done, strict=True))[::2]:
            self.marks.now += seconds
            future.set_result(torch.zeros(1))
        last_is_over = len(done) % 2 == 0 and bool(done)  # it ended before the marks below
        return (self.marks.now - began) + (done[-1] if last_is_over else 0)

    def wait(self, ticks):
        if ticks is not None:
            self.watch.wait_begins()
            self.marks.now += ticks
            self.watch.wait_ends()
        return ticks or 0

    def iteration(self, between, micros, until_step, stepping):
        """Play one iteration, and return its seconds, communication and phases."""
        watch, marks = self.watch, self.marks
        marks.now += between
        began, comm, forward = marks.now, 0, 0
        gap = None if self.ended is None else began - self.ended
        for micro in micros:
            watch.forward(micro["samples"], micro["work"])
            marks.now += micro["forward"]
            comm += self.wait(micro["wait in forward"])
            watch.backward()
            forward += micro["forward"]
            marks.now += micro["backward"]
            comm += self.wait(micro["wait after"])
            comm += self.exchange(micro["ready"], micro["done"]) if micro["done"] else 0
        marks.now += until_step
        stepped_from = marks.now
        watch.stepping()
        marks.now += stepping
        watch.stepped()
        self.ended = marks.now
        own, samples, work = (
            self.ended - began - comm,
            *(sum(one[key] for one in micros) for key in ("samples", "work")),
        )
        return [own, comm, samples, work, gap, forward, stepped_from - began - comm - forward, stepping]


def told(rows):
    return [
        [step.seconds, step.comm_seconds, samples, work, *(step.phases[name] for name in PHASES)]
        for step, samples, work in rows
    ]


def test_an_exchange_counts_once_its_last_bucket_was_ready_and_one_is_over():
    """A gradient that is left out in a step, or comes late, leaves an exchange with only one of its two ends."""
    marks = Ticks()
    watch, rows = stopwatch(marks)
    hook = watch.timed(lambda state, bucket: state)
    for last, ends in ((False, True), (True, False), (True, True)):
        watch.forward(1)
        future = torch.futures.Future()
        hook(future, SimpleNamespace(is_last=lambda last=last: last))
        marks.now += 5
        if ends:
            future.set_result(torch.zeros(1))
        marks.now += 2
        watch.stepped()
    watch.close()
    assert [(step.seconds, step.comm_seconds) for step, *_ in rows] == [(7, 0), (7, 0), (2, 5)]
