"""Links between a worker and the server: what one end says is what the other hears, over messages of this process."""

import math
from queue import Queue
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import Outcome, SampleBatch, Stamp
from paceline.parameter_server import LostServerError
from paceline.parameter_server.links import FIRST, LARGEST_EXCESS, OUTCOMES, SERVER, WIRES, GlooLink, LocalLink, serve
from paceline.parameter_server.service import Work
from paceline.parameter_server.torch_optimizer import FRONT

RANK, P = 3, 5


@pytest.fixture(autouse=True)
def messages(monkeypatch):
    """Messages by queues: a group is this end of them. A shorter message leaves the rest of its room as it was."""

    def send(tensor, peer, group):
        assert peer == group.peer
        group.out.put(tensor.clone())

    def receive(tensor, peer, group):
        assert peer == group.peer
        message = group.inbox.get(timeout=5)
        if isinstance(message, str):
            raise RuntimeError(message)
        if message.dtype != tensor.dtype or message.numel() > tensor.numel():
            raise RuntimeError("a message of another type or length")
        tensor[: message.numel()] = message

    monkeypatch.setattr(dist, "send", send)
    monkeypatch.setattr(dist, "recv", receive)


class Recorded:
    """A service that hands out these steps, and remembers what it is told."""

    def __init__(self, *steps, outcome=Outcome.APPLIED, given_up=()):
        self.steps, self.outcome, self.given_up = list(steps), outcome, given_up
        self.pushed, self.left = [], []

    def pull(self, worker, into):
        stamp, rows, waited = self.steps.pop(0)
        into[:] = np.arange(P) + stamp[0]
        return Work(Stamp(*stamp), into, SampleBatch(rows, np.ones_like(rows)), waited)

    def push(self, worker, stamp, gradient, samples, *, seconds, comm_seconds):
        self.pushed.append((worker, stamp, gradient.copy(), samples, seconds, comm_seconds))
        return SimpleNamespace(outcome=self.outcome)

    def is_given_up(self, worker, stamp):
        return stamp in self.given_up

    def leave(self, worker):
        self.left.append(worker)


def linked(service, numbers=P):
    """A link to this service, and the thread that answers it."""
    up, down = Queue(), Queue()
    here, there = SimpleNamespace(peer=SERVER, out=up, inbox=down), SimpleNamespace(peer=RANK, out=down, inbox=up)
    link = GlooLink(here, torch.zeros(FRONT + numbers), torch.zeros(FRONT + numbers))
    thread = Thread(target=serve, args=(service, "w", RANK, there, P), daemon=True)
    thread.start()
    return link, thread


def left(link, thread, service):
    link.leave()
    thread.join(5)
    return not thread.is_alive() and service.left == ["w"]


STEPS = st.tuples(
    st.tuples(st.integers(0, 2**40), st.integers(0, 99)),
    st.sampled_from([1, 2, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST + 3]).map(np.arange),
    st.floats(0, 9),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(STEPS, min_size=2, max_size=2),
    st.sampled_from(list(Outcome)),
    st.sampled_from([None, *WIRES.values()]),
    st.lists(st.integers(-9, 9), min_size=P, max_size=P),
    st.tuples(st.integers(1, 99), st.floats(0, 9), st.floats(0, 9)),
)
def test_link_carries_step_and_outcome(steps, outcome, wire, row, about):
    """A gradient of no wire of its own is the model's row itself."""
    service = Recorded(*steps, outcome=outcome)
    link, thread = linked(service)
    for number, (stamp, rows, waited) in enumerate(steps):
        work = link.pull()
        assert link.outcome is (outcome if number else None)
        assert (work.stamp, work.assigned.rows.tolist()) == (stamp, rows.tolist())
        assert work.assigned.epochs.tolist() == [0] * len(rows)
        assert work.waited == pytest.approx(waited, abs=6e-10)
        assert work.parameters.tolist() == (np.arange(P) + stamp[0]).astype(np.float32).tolist()
        if not number:
            gradient = link.up[FRONT:] if wire is None else torch.zeros(P, dtype=wire)
            gradient[:] = torch.tensor(row)
            link.push(work.stamp, gradient, *about)
    ((worker, stamp, gradient, *told),) = service.pushed
    assert (worker, stamp, gradient.dtype, gradient.tolist()) == ("w", steps[0][0], np.float32, row)
    assert told == pytest.approx(about, abs=6e-10)
    assert left(link, thread, service)


@pytest.mark.parametrize("pulls_between", [False, True])
def test_the_outcome_of_a_push_is_told_once(pulls_between):
    step = ((1, 2), np.arange(2), 0.0)
    service = Recorded(*[step] * 3, outcome=Outcome.DROPPED)
    link, thread = linked(service)
    link.push(link.pull().stamp, link.up[FRONT:], 2, 0.1, 0.1)
    link.pull()
    assert link.outcome is Outcome.DROPPED
    if pulls_between:
        link.pull()
        assert link.outcome is None
    assert left(link, thread, service)


@pytest.mark.parametrize(
    ("numbers", "cut_off"), [(0, False), (LARGEST_EXCESS * P, False), (LARGEST_EXCESS * P + 1, True)]
)
def test_gradient_length_judged_by_server(numbers, cut_off, caplog):
    step = ((1, 2), np.arange(2), 0.0)
    service = Recorded(step, step, outcome=Outcome.REFUSED)
    link, thread = linked(service)
    link.push(link.pull().stamp, torch.ones(numbers), 2, 0.1, 0.1)
    if cut_off:
        thread.join(5)
        assert not thread.is_alive()
        assert caplog.messages == [f"w is lost: it announces {numbers} numbers of type 0, and the model has {P}"]
        assert (service.pushed, service.left) == ([], ["w"])
    else:
        link.pull()
        assert (link.outcome, len(service.pushed[0][2])) == (Outcome.REFUSED, numbers)
        assert left(link, thread, service)
        assert not caplog.messages


@pytest.mark.parametrize("numbers", [P - 1, P + 1])
def test_a_worker_of_another_model_is_told_so_and_ends(numbers, caplog):
    service = Recorded()
    link, thread = linked(service, numbers)
    with pytest.raises(
        ValueError, match=f"of this rank has {numbers} parameters and that of rank 0 {P}: build the same"
    ):
        link.pull()
    thread.join(5)
    assert caplog.messages == [f"w is lost: its model has {numbers} parameters, and that of rank 0 {P}"]
    assert service.left == ["w"]


def test_a_worker_is_told_whether_its_step_is_given_up():
    service = Recorded(given_up=[Stamp(7, 9)])
    link, thread = linked(service)
    assert [link.is_given_up(Stamp(*stamp)) for stamp in ((7, 9), (7, 8), (9, 7))] == [True, False, False]
    assert left(link, thread, service)


@pytest.mark.parametrize("ends", [False, True])
def test_leave_after_push_takes_answer_first(ends):
    step = ((1, 2), np.arange(2), 0.0)
    service = Recorded(step, ((2, 3), np.arange(0 if ends else 2), 0.0))
    link, thread = linked(service)
    link.push(link.pull().stamp, link.up[FRONT:], 2, 0.1, 0.1)
    assert left(link, thread, service)
    assert link.group.inbox.empty()
    assert link.group.out.empty(), "nobody would take what is said after the end"


@pytest.mark.parametrize(
    "call",
    [
        lambda link: link.pull(),
        lambda link: link.is_given_up(Stamp(0, 0)),
        lambda link: link.push(Stamp(0, 0), link.up[FRONT:], 1, 0.0, 0.0),
        lambda link: link.push(Stamp(0, 0), torch.zeros(2), 1, 0.0, 0.0),
        lambda link: link.leave(),
    ],
)
def test_unresponsive_server_is_lost(monkeypatch, call):
    def closed(*args, **named):
        raise RuntimeError("Connection closed\nby peer")

    monkeypatch.setattr(dist, "send", closed)
    monkeypatch.setattr(dist, "recv", closed)
    link = GlooLink(SimpleNamespace(), torch.zeros(FRONT + P), torch.zeros(FRONT + P))
    with pytest.raises(LostServerError, match=r"the server, rank 0, does not answer \(Connection closed\); start"):
        call(link)


@given(st.integers(0, len(OUTCOMES) - 1), st.lists(st.booleans(), max_size=5))
def test_link_in_server_process_tells_outcomes(outcome, pushes):
    service = Recorded(*[((4, 2), np.arange(3), 0.5)] * 5, outcome=OUTCOMES[outcome])
    link, before = LocalLink(service, "w", torch.zeros(P)), False
    for number, push in enumerate(pushes):
        work = link.pull()
        assert link.outcome is (OUTCOMES[outcome] if before else None)
        if push:
            link.push(work.stamp, torch.full((P,), number, dtype=torch.bfloat16), 3, 0.25, math.pi)
            worker, stamp, gradient, *told = service.pushed[-1]
            assert (worker, stamp, gradient.tolist(), told) == ("w", (4, 2), [number] * P, [3, 0.25, math.pi])
        before = push
    link.leave()
    assert service.left == ["w"]
