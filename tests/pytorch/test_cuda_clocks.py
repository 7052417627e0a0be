"""Marks, clocks and the recorder on a CUDA device: on a stand-in that is in order, and late by chance."""

import _thread
import gc
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1] / "standin"))

from standin import stand_in

from paceline.recording import Recorder, merge, watch
from paceline.recording.torch.busy_clock import LATEST, Clock
from paceline.recording.torch.collective_time import listen
from paceline.recording.torch.marks import CPUMarks, CUDAMarks, Delayed, marks_of

FIRST = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _nothing_listens_afterwards():
    """A model that was watched here is garbage by now; as long as it is there, its clock asks a device for events."""
    yield
    gc.collect()


def test_marks_are_of_the_models_device():
    """A script may give DistributedDataParallel a device number and never choose that device."""
    with stand_in(devices=2, tensors=False) as device:
        parameter = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 1))
        marks = marks_of(SimpleNamespace(parameters=lambda: iter([parameter])))
        begin = marks.mark()
        with torch.cuda.device(1):
            device.streams.sleep(0.02)
        end = marks.mark()
        assert not marks.passed(end)
        marks.wait(end)
        assert marks.passed(end)
        assert 0.02 <= marks.seconds(begin, end) < 0.2


def test_a_model_on_the_cpu_is_timed_by_the_cpu():
    assert isinstance(marks_of(torch.nn.Linear(2, 2)), CPUMarks)
    assert isinstance(marks_of(torch.nn.ReLU()), CPUMarks)


def lap(device, clock, seconds):
    clock.forward(8)
    device.streams.sleep(seconds)
    clock.summed(clock.ready())
    return clock.report()


@pytest.mark.parametrize("seed", range(4))
def test_lagging_device_timed_without_waiting(seed):
    chance = random.Random(seed)
    with stand_in(seed=seed, latest=chance.uniform(0, 0.03), tensors=False) as device:
        clock = Clock(CUDAMarks(FIRST))
        lengths = [chance.uniform(0.003, 0.01) for _ in range(12)]
        reports = []
        for seconds in lengths:
            reports.append(lap(device, clock, seconds))
            if chance.random() < 0.5:
                device.streams.current_stream().until_seen()  # a loop that prints its loss now and then
        assert not device.waits
        device.streams.current_stream().until_seen()
        reports.append(clock.report())
        known = [report for report in reports if np.isfinite(report.seconds)]
        assert sum(report.steps for report in known) == len(lengths)
        assert sum(report.samples for report in known) == 8 * len(lengths)
        # What the loop does between steps is estimated, so only the steps themselves give a bound.
        assert sum(report.seconds for report in known) >= 0.99 * sum(lengths)


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


def test_recorded_loop_runs_ahead_of_device(tmp_path):
    with stand_in() as device:
        model = torch.nn.Linear(8, 8).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Recorder(tmp_path / "0.jsonl", "0") as recorder:
            watching = watch(model, optimizer, recorder)
            for _ in range(10):
                loss = model(torch.ones(16, 8, device="cuda")).sum()
                device.streams.sleep(0.01)
                loss.backward()
                optimizer.step()
            assert not device.waits
            watching.close()
            assert len(device.waits) == 1, "the end of the recording waits for the last iteration"
    trace = merge([tmp_path / "0.jsonl"])
    assert len(trace) == 10
    assert (trace.seconds >= 0.00999).all()


class Waits:
    begun = ended = 0

    def wait_begins(self):
        self.begun += 1

    def wait_ends(self):
        self.ended += 1


def in_a_thread_of_torchs(work):
    """Run in a thread that Python did not make, and shows as a dummy: backward passes on a device have such."""
    over = threading.Event()

    def run():
        threading.current_thread()
        work()
        over.set()

    _thread.start_new_thread(run, ())
    assert over.wait(20)


@pytest.mark.parametrize(("has_device", "heard"), [(True, 1), (False, 0)])
def test_backward_wait_is_of_training_thread(has_device, heard, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: has_device)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    waits = Waits()
    stop = listen(waits)
    try:
        in_a_thread_of_torchs(lambda: distributed.all_reduce(torch.ones(1)))
    finally:
        stop()
        distributed.destroy_process_group()
    assert (waits.begun, waits.ended) == (heard, heard)


def test_device_number_arrives_once():
    with stand_in() as device:
        late = Delayed()
        assert late.take() is None
        device.streams.sleep(0.02)
        late.fetch(torch.full((), 3.0, device="cuda"))
        assert late.under_way
        assert late.take() is None
        device.streams.current_stream().until_seen()
        assert late.take() == 3.0
        assert late.take() is None
        late.fetch(torch.full((), 4.0, device="cuda"))
        late.forget()
        device.streams.current_stream().until_seen()
        assert late.take() is None
        assert not device.waits
