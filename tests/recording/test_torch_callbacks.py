"""A process does not close its interpreter while a thread of torch holds a callback of ours."""

import os
import threading
import time

import pytest
import torch

from paceline.recording.torch.watch import add_callback, wait_for_callbacks


def forks():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("waits", [wait_for_callbacks, forks])
def test_exit_and_fork_wait_for_threads(waits):
    future = torch.futures.Future()
    add_callback(future, lambda arrived: arrived.value() + 1)

    def sum_up():
        time.sleep(0.2)
        future.set_result(torch.zeros(1))

    thread = threading.Thread(target=sum_up)
    thread.start()
    waits()
    assert future.done()
    thread.join()
