"""The stand-in for CUDA is in order, late, and stricter than a device."""

import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "standin"))

from standin import stand_in


@pytest.mark.parametrize("seed", range(5))
def test_events_come_in_order_and_late(seed):
    with stand_in(seed=seed, tensors=False) as device:
        lengths = [device.streams.chance.uniform(0, 0.004) for _ in range(12)]
        events = [torch.cuda.Event(enable_timing=True)]
        events[0].record()
        for seconds in lengths:
            device.streams.sleep(seconds)
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        assert not events[-1].query()
        while not events[-1].query():
            passed = [event.query() for event in reversed(events)]  # the last is asked first
            assert passed == sorted(passed)
        for seconds, before, after in zip(lengths, events[:-1], events[1:], strict=True):
            assert before.elapsed_time(after) / 1e3 >= 0.999 * seconds
        assert not device.waits


@pytest.mark.parametrize("ask", ["query", "synchronize", "elapsed_time"])
def test_an_event_that_was_not_recorded_tells_nothing(ask):
    with stand_in(tensors=False):
        event = torch.cuda.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="was not recorded"):
            getattr(event, ask)(*([event] if ask == "elapsed_time" else []))


def test_unpassed_event_has_no_time():
    with stand_in(tensors=False) as device:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        device.streams.sleep(30.0)
        last.record()
        with pytest.raises(RuntimeError, match="has not passed both"):
            first.elapsed_time(last)


def test_thread_without_device_has_the_first():
    with stand_in(devices=2, tensors=False):
        torch.cuda.set_device(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
        assert (torch.cuda.current_device(), seen) == (1, [0])


def test_waiting_place_is_known_by_line():
    with stand_in() as device:
        number = torch.ones((), device="cuda")
        for wait in (torch.cuda.synchronize, number.item, lambda: float(number), lambda: bool(number), number.cpu):
            before = len(device.waits)
            wait()
            assert [place.startswith(__file__) for place in device.waits[before:]] == [True]
        assert float(torch.ones(())) == 1.0
        assert len(device.waits) == before + 1, "what lies in main memory can be read"


def test_number_is_there_once_work_is_done():
    with stand_in() as device:
        number, began = torch.ones((), device="cuda"), time.perf_counter()
        device.streams.sleep(0.02)
        number.item()
        assert time.perf_counter() - began >= 0.02


def test_memory_ends_at_its_limit_and_comes_back():
    with stand_in(limit=1000) as device:
        kept = torch.zeros(100, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            torch.ones(200).to("cuda")
        assert torch.cuda.memory_allocated() == 400
        view = kept[1:]
        del kept
        assert torch.cuda.memory_allocated() == 400, "a view keeps it"
        del view
        assert torch.cuda.memory_allocated() == 0
        torch.ones(200).to("cuda")
        assert torch.cuda.max_memory_allocated() == 800
    assert device.memory.allocated == 0


def test_tensor_and_views_know_their_device():
    with stand_in():
        host = torch.arange(6.0)
        moved = host.to("cuda")
        assert [one.is_cuda for one in (host, host[1:], moved, moved[1:], moved + 1)] == [
            False,
            False,
            True,
            True,
            True,
        ]
        assert moved.device == torch.device("cuda", 0)
        assert torch.nn.Linear(2, 2).cuda().weight.is_cuda
        moved[0] = 7.0
        assert host[0] == 0.0, "the device has a copy"


def test_nothing_is_left_of_it():
    before = {name: getattr(torch.cuda, name) for name in ("Event", "synchronize", "is_available", "device")}
    methods = {name: getattr(torch.Tensor, name) for name in ("item", "to", "is_cuda", "device", "__float__")}
    with stand_in():
        assert torch.cuda.is_available()
    assert {name: getattr(torch.cuda, name) for name in before} == before
    assert {name: getattr(torch.Tensor, name) for name in methods} == methods
    assert not torch.zeros(2).is_cuda
    assert torch.zeros.__module__ != "standin_tensors"
