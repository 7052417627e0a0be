"""The clocks of a job's hosts, asked over a connection made here: who asks, how often, and which answer counts."""

import queue
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from paceline.recording.clock_offset import ClockOffset
from paceline.recording.torch import clocks


class Cell:
    """A number on a device, which writes down what is done with it."""

    def __init__(self, log):
        self.log, self.number = log, 0.0

    def item(self):
        self.log.append("item")
        return self.number

    def fill_(self, number):
        self.log.append("fill")
        self.number = number


def of_ranks(monkeypatch, ranks, ahead, backend="gloo"):
    """Measure on threads that stand for ranks, whose clocks are ahead by these seconds; return offsets, logs, cells."""
    lines = {(a, b): queue.Queue() for a in range(ranks) for b in range(ranks)}
    me, logs, cells = threading.local(), [[] for _ in range(ranks)], []

    def zeros(*shape, **named):
        cells.append((shape, named))
        return Cell(logs[me.rank])

    def send(cell, to):
        logs[me.rank].append(f"send {to}")
        lines[me.rank, to].put(cell.number)

    def recv(cell, other):
        cell.number = lines[other, me.rank].get(timeout=10)
        logs[me.rank].append(f"recv {other}")

    monkeypatch.setattr(torch, "zeros", zeros)
    for name, stand_in in (("send", send), ("recv", recv), ("get_rank", lambda: me.rank)):
        monkeypatch.setattr(distributed, name, stand_in)
    monkeypatch.setattr(distributed, "get_world_size", lambda: ranks)
    monkeypatch.setattr(distributed, "get_backend", lambda: backend)
    found = [None] * ranks

    def run(rank):
        me.rank = rank

        def clock():
            logs[rank].append("clock")
            return 1000.0 + ahead[rank]

        found[rank] = clocks.measure_offset(3, clock)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return found, logs, cells


def test_each_rank_asks_rank_zero_for_its_time_in_turn(monkeypatch):
    found, logs, cells = of_ranks(monkeypatch, 3, [5.0, 7.5, 1.25])
    assert found == [ClockOffset(0.0, 0.0), ClockOffset(2.5, 0.0), ClockOffset(-3.75, 0.0)]
    assert logs[1] == logs[2] == ["clock", "send 0", "recv 0", "item", "clock"] * 3
    # the device's question has come only once its number is known, so the clock is read after it
    assert logs[0] == [
        step for rank in (1, 2) for step in [f"recv {rank}", "item", "clock", "fill", f"send {rank}"] * 3
    ]
    assert cells == [((1,), {"dtype": torch.float64, "device": "cpu"})] * 3


def test_a_single_rank_asks_nobody_and_a_device_holds_the_time_of_nccl(monkeypatch):
    found, logs, cells = of_ranks(monkeypatch, 1, [5.0], backend="nccl")
    assert (found, logs) == ([ClockOffset(0.0, 0.0)], [[]])
    assert cells == [((1,), {"dtype": torch.float64, "device": "cuda"})]


@pytest.mark.parametrize(
    ("available", "initialized", "local", "found"),
    [
        (False, True, "4", None),
        (True, False, "4", None),
        (True, True, "4", (0.0, 0.0)),
        (True, True, "2", (1.5, 0.25)),
        (True, True, None, (1.5, 0.25)),
    ],
)
def test_clocks_are_compared_only_between_hosts(monkeypatch, available, initialized, local, found):
    asked = []
    monkeypatch.setattr(distributed, "is_available", lambda: available)
    monkeypatch.setattr(distributed, "is_initialized", lambda: initialized)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(clocks, "measure_offset", lambda rounds: asked.append(rounds) or ClockOffset(1.5, 0.25))
    monkeypatch.setattr(clocks, "socket", SimpleNamespace(gethostname=lambda: "here"))
    if local is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    told = clocks.offset_from_rank_zero()
    if found is None:
        assert told == {}
    else:
        assert told == {"host": "here", "offset_seconds": found[0], "error_seconds": found[1]}
    assert asked == ([8] if found and found[0] else [])
