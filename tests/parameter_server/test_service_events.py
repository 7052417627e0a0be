"""What happens while a worker waits for samples: whoever began a step meanwhile gets its time."""

import threading

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Server, scheme
from paceline.parameter_server.service import Service


@pytest.mark.parametrize("taken_back", [False, True])
def test_new_step_during_wait_is_kept(monkeypatch, taken_back):
    """Worker a holds the last samples; it leaves while b waits, and c takes them."""
    server = Server(np.zeros(2), SGD(0.1), scheme("asp", 3), EpochSampler(40, epochs=1), batch=5, workers="abc")
    service = Service(server, patience=5.0)
    held, waits, given_up = {"a": service.pull("a")}, [], []

    def wait(patience):
        waits.append(patience)
        assert len(waits) < 4
        for worker, work in held.items():
            given_up.append((worker, service.is_given_up(worker, work.stamp)))
        if taken_back and len(waits) == 1:
            service.leave("a")
            held.clear()
            held["c"] = service.pull("c")
        elif taken_back:
            assert service.push("c", held.pop("c").stamp, np.ones(2)).outcome is Outcome.APPLIED
        return False

    for _ in range(7):
        service.push("b", service.pull("b").stamp, np.ones(2))
    monkeypatch.setattr(threading.Condition, "wait", lambda _, patience: wait(patience))
    work = service.pull("b")
    if taken_back:
        assert (work.ended, given_up, waits) == (True, [("a", False), ("c", False)], [5.0, 5.0])
    else:
        assert (work.ended, len(work.assigned), given_up) == (False, 5, [("a", False)])
        assert service.is_given_up("a", held["a"].stamp)
