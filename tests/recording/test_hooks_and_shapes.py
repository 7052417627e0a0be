"""Hooks that wait for threads of torch, hooks of gradients and sizes of batches, call by call."""

import collections
import functools
import math
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.recording.recorder import Step
from paceline.recording.torch import callbacks
from paceline.recording.torch.busy_clock import added
from paceline.recording.torch.forward_work import elements_of, tell, work_of
from paceline.recording.torch.late import Late
from paceline.recording.torch.samples import leading_size, shapes_in
from paceline.recording.torch.stopwatch import PHASES, Stopwatch
from paceline.recording.torch.watch import Watch


class Clock:
    """Time that passes while somebody sleeps; after so many sleeps something is done."""

    def __init__(self, sleeps=None, then=None):
        self.now, self.slept, self.sleeps, self.then = 50.0, [], sleeps, then

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) == self.sleeps:
            self.then()


def callback():
    """Stands for what torch holds."""


@pytest.mark.parametrize("sleeps", [0, 1, 7, None])
def test_the_exit_waits_until_nothing_is_held_but_never_for_more_than_two_seconds(monkeypatch, sleeps):
    held = [callback] if sleeps != 0 else []
    monkeypatch.setattr(callbacks, "_held", held)
    monkeypatch.setattr(callbacks, "time", clock := Clock(sleeps, held.clear))
    callbacks.let_go()
    assert set(clock.slept) <= {0.0005}
    if sleeps is None:
        assert clock.now == pytest.approx(52.0, abs=0.001)
        assert held
    else:
        assert len(clock.slept) == sleeps


def test_a_callback_is_held_as_long_as_torch_has_it(monkeypatch):
    future = SimpleNamespace(then=lambda given: ("then", given))
    own = SimpleNamespace()

    def arrived(_):
        return own

    assert callbacks.then(future, arrived) == ("then", arrived)
    assert arrived in callbacks._held
    before = len(callbacks._held)
    del arrived
    assert len(callbacks._held) == before - 1


def test_a_late_number_is_copied_to_memory_that_stays_in_place(monkeypatch):
    asked, empty = [], torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, **told: asked.append((shape, told)) or empty(*shape, dtype=told["dtype"])
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=asked.append, query=lambda: True))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream", device))
    late = Late()
    for number in (1.5, 2.5):
        late.fetch(torch.tensor(number))
        assert late.take() == number
    stream = ("stream", torch.device("cpu"))
    assert asked == [(((),), {"dtype": torch.float64, "pin_memory": True}), stream, stream]


# -- sizes -----------------------------------------------------------------------------------------------------------

NESTED = [
    7,
    torch.tensor(3),
    "text",
    {"a": [(torch.zeros(2, 3), np.zeros(5))], "b": torch.zeros(0, 4)},
    collections.UserDict({"c": torch.zeros(6)}),
]


def test_the_first_tensor_with_an_axis_tells_the_samples_and_all_of_them_the_work():
    assert [tuple(shape) for shape in shapes_in(NESTED)] == [(2, 3), (5,), (0, 4), (6,)]
    assert leading_size(NESTED, {}) == 2.0
    assert leading_size(NESTED[:3], {"x": torch.zeros(4, 9), "y": torch.zeros(8)}) == 4.0
    assert leading_size([torch.zeros(1, 9)], {"x": torch.zeros(4)}) == 1.0
    assert elements_of(NESTED, {"x": torch.zeros(2, 2, 2)}) == 6 + 5 + 0 + 6 + 8
    for nothing in ([], [3, "x", torch.tensor(1.0), {}]):
        assert math.isnan(leading_size(nothing, {}))
        assert math.isnan(elements_of(nothing, {}))
    assert elements_of([torch.zeros(0, 4)], {}) == 0.0


def test_work_that_a_loader_states_counts_once_the_latest_alone():
    tell(3.0)
    tell(4.5)
    assert [work_of([torch.zeros(2, 3)], {"x": torch.zeros(4)}) for _ in range(3)] == [4.5, 10.0, 10.0]


# -- hooks of gradients ----------------------------------------------------------------------------------------------


class Parallel(torch.nn.Module):
    """A model around another, as DistributedDataParallel."""

    def __init__(self, hooked=False):
        super().__init__()
        self.module, self.process_group, self.hooked, self.registered = torch.nn.Linear(2, 1), "group", hooked, []

    def register_comm_hook(self, state, hook):
        if self.hooked:
            raise RuntimeError("register_comm_hook can only be called once.")
        self.registered.append((state, hook))
        self.hooked = True


def recorder_of(rows):
    return SimpleNamespace(begin=lambda: Step((), 0.0), write=lambda step, samples, work: rows.append((samples, work)))


def test_the_exchange_of_gradients_is_timed_from_the_first_forward_pass_on_unless_it_is_already():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model, recorder = Parallel(), recorder_of([])
    stopwatch = Stopwatch(model, recorder)
    assert (recorder.phases, recorder.wait_in_comm) == (PHASES, True)
    assert model.registered == []
    stopwatch.forward(3, 1.0)
    stopwatch.forward(3, 1.0)
    ((state, hook),) = model.registered
    assert (state, hook.__wrapped__, hook.__name__) == ("group", allreduce_hook, "allreduce_hook")
    assert stopwatch.times_exchanges
    stopwatch.close()
    other, own = Parallel(), lambda state, bucket: None
    watching = Watch(other, torch.optim.SGD(other.parameters(), lr=0.1), recorder_of([]))
    other.register_comm_hook("mine", watching.timed(own))
    watching.stopwatch.forward(1)
    assert [state for state, _ in other.registered] == ["mine"]
    assert other.registered[0][1].__wrapped__ is own
    assert len(other.module._forward_pre_hooks) == 1, "the wrapper's own broadcasts are no work"
    assert not other._forward_pre_hooks
    watching.close()
    spoilt = Stopwatch(Parallel(hooked=True), recorder_of([]))
    with pytest.raises(
        RuntimeError, match=r"already has a communication hook.*register `watching.timed\(hook\)` instead"
    ):
        spoilt.forward(1)
    spoilt.close()


def test_samples_and_work_of_a_step_are_those_of_all_its_forward_passes():
    rows = []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = {"samples": lambda args, kwargs: 10.0, "work": lambda args, kwargs: 2.0 + len(kwargs)}
    watching = Watch(model, optimizer, recorder_of(rows), **counted)
    plain = Watch(model, optimizer, recorder_of(plainly := []))
    for passes in (1, 3):
        for _ in range(passes):
            model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    with watching, plain:
        assert watching.__enter__() is watching
    assert rows == [(10.0, 2.0), (30.0, 6.0)]
    assert plainly == [(4.0, 8.0), (12.0, 24.0)]


def test_only_steps_of_ones_own_optimizer_are_told_before_and_after(monkeypatch):
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other))
    for given in (None, ours):
        watching, log = Watch(model, given, recorder_of([])), []
        for name in ("stepping", "stepped"):
            monkeypatch.setattr(watching.stopwatch, name, functools.partial(log.append, name))
        theirs.step()
        ours.step()
        theirs.step()
        assert log == ["stepping", "stepped"]
        watching.close()
        ours.step()
        assert len(log) == 2


def test_rows_of_features_have_one_length():
    assert added((1.0, 2.0), (0.5, 4.0)) == (1.5, 6.0)
    assert (added((), ()), added((1.0,), ()), added((), (2.0,))) == ((), (1.0,), (2.0,))
    with pytest.raises(ValueError, match="zip"):
        added((1.0,), (1.0, 2.0))


def test_a_mapping_proxy_is_a_mapping_too():
    assert leading_size([types.MappingProxyType({"x": torch.zeros(3)})], {}) == 3.0
