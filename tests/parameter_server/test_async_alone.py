"""The loop of one asynchronous worker, which holds the server itself: its times, its refusals and its end."""

import dataclasses
import time

import numpy as np
import pytest
import torch

from paceline.coordinator.asynchronous import Outcome
from paceline.parameter_server import AsyncJob

SAMPLES, BATCH = 24, 8


def started(**options):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(SAMPLES, 2), torch.arange(SAMPLES).float())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    job = AsyncJob(model, optimizer, data, **{"batch": BATCH, "epochs": 2, "scheme": "asp", **options})
    return job, model, optimizer


def computed(model, inputs, times=1.0):
    model.zero_grad()
    (model(inputs).mean() * times).backward()


def looped(job, step):
    for inputs, _ in job:
        step(inputs)


class Measured:
    """A link on which every message takes a time of its own, on a clock that only it moves."""

    def __init__(self, link, clock, waited):
        self.link, self.clock, self.waited, self.pushed = link, clock, waited, []

    def pull(self):
        self.clock["now"] += 2.0
        return dataclasses.replace(self.link.pull(), waited_seconds=self.waited)

    def push(self, stamp, gradient, samples, seconds, comm_seconds):
        self.clock["now"] += 5.0
        self.pushed.append((samples, seconds, comm_seconds))
        self.link.push(stamp, gradient, samples, seconds, comm_seconds)

    def __getattr__(self, name):
        return getattr(self.link, name)


@pytest.mark.parametrize(("waited", "pulling"), [(0.0, 2.0), (0.5, 1.5), (9.0, 0.0)])
def test_step_reports_computing_and_messages(alone, monkeypatch, waited, pulling):
    clock = {"now": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    job, model, _ = started()
    job.link = link = Measured(job.link, clock, waited)
    for inputs, _ in job:
        computed(model, inputs)
        clock["now"] += 3.0
        job.push()
    assert [samples for samples, _, _ in link.pushed] == [8] * 6
    assert {seconds for _, seconds, _ in link.pushed} == {3.0}
    assert [wire for *_, wire in link.pushed] == [pulling] + [pulling + 5.0] * 5


def test_every_sample_once_per_told_epoch(alone):
    seen, told = [], []

    def ended(epoch):
        told.append((epoch, len(seen), model.weight.detach().clone()))

    job, model, _ = started(on_epoch=ended)
    first = model.weight.detach().clone()
    for inputs, labels in job:
        computed(model, inputs)
        seen += labels.tolist()
        job.push()
    assert sorted(seen) == sorted([*range(SAMPLES)] * 2)
    assert [(epoch, samples) for epoch, samples, _ in told] == [(1, SAMPLES), (2, 2 * SAMPLES)]
    assert not torch.equal(told[0][2], first)
    assert torch.equal(told[1][2], model.weight), "the last are the final ones"
    assert torch.equal(model.weight.ravel(), torch.from_numpy(job.service.parameters[:2]))
    with pytest.raises(RuntimeError, match="create a new AsyncJob"):
        next(iter(job))


def test_worker_stops_after_five_refusals(alone):
    job, model, _ = started(epochs=9)
    pushed = []

    def step(inputs):
        pushed.append(inputs)
        computed(model, inputs, times=1.0 if len(pushed) in (1, 6) else float("nan"))
        job.push()

    with pytest.raises(RuntimeError, match="the last 5 gradients of this worker were refused"):
        looped(job, step)
    assert len(pushed) == 11, "four in a row are forgiven"
    assert job.link.outcome is Outcome.REFUSED


def test_push_is_of_one_batch(alone):
    job, model, _ = started()
    with pytest.raises(RuntimeError, match="call it once for each batch of the loop"):
        job.push()
    assert not job.is_abandoned(), "there is no step"
    with pytest.raises(RuntimeError, match=r"call job\.push\(\) after loss\.backward\(\)"):
        looped(job, lambda inputs: computed(model, inputs))
    job, model, _ = started()
    for inputs, _ in job:
        assert not job.is_abandoned()
        computed(model, inputs)
        job.push()
        assert not job.is_abandoned()
        with pytest.raises(RuntimeError, match="call it once for each batch of the loop"):
            job.push()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda group, groups: group.update(lr=0.2), "lr from 0.01 to 0.2"),
        (lambda group, groups: group.update(momentum=0.5), "momentum from 0 to 0.5"),
        (lambda group, groups: group.pop("weight_decay"), "weight_decay from 0 to None"),
        (lambda group, groups: group["params"].pop(), "its parameters"),
        (lambda group, groups: groups.append({"params": []}), "groups from 1 to 2"),
    ],
)
def test_an_optimizer_that_the_loop_changes_is_refused(alone, change, sentence):
    job, model, optimizer = started()

    def step(inputs):
        computed(model, inputs)
        change(optimizer.param_groups[0], optimizer.param_groups)
        job.push()

    with pytest.raises(RuntimeError, match=f"the optimizer changed .*{sentence}"):
        looped(job, step)


def test_in_place_tensor_rate_is_seen(alone):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    data = torch.utils.data.TensorDataset(torch.ones(SAMPLES, 2), torch.arange(SAMPLES).float())
    job = AsyncJob(model, optimizer, data, batch=BATCH, epochs=2, scheme="asp")

    def step(inputs):
        computed(model, inputs)
        optimizer.param_groups[0]["lr"].fill_(0.2)
        job.push()

    with pytest.raises(RuntimeError, match="lr from"):
        looped(job, step)


def test_closed_job_has_no_worker(alone):
    job, *_ = started()
    job.close()
    job.close()
    assert not job.service.server.workers


def test_newest_parameters_between_steps(alone):
    job, model, _ = started()
    inputs, _ = next(batches := iter(job))
    computed(model, inputs)
    job.push()
    before = model.weight.detach().clone()
    job.load_newest()
    assert not torch.equal(model.weight, before)
    assert np.array_equal(job.flat.parameters, job.service.parameters)
    job.close()
    batches.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"wire": "int8"}, r"wire must be one of \['float32', 'float16', 'bfloat16'\], got 'int8'"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_an_option_out_of_range_is_refused(alone, options, told):
    with pytest.raises(ValueError, match=told):
        started(**options)


def test_a_job_needs_a_process_group():
    with pytest.raises(RuntimeError, match=r'call torch\.distributed\.init_process_group\("gloo"\) before AsyncJob'):
        started()
