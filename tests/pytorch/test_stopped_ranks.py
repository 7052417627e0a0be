"""A rank that is stopped (SIGSTOP), with all its threads: waited for, or given up, and ended when it is continued."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from ranks import outcomes_of, run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA
from paceline.torch import BalancedLoader, attach

GLOBAL_BATCH, STEPS = 24, 16


def wait_until(holds, within=40.0):
    """Return once the condition holds."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"{holds.__name__} did not become true"
        time.sleep(0.002)


def state(pid):
    """Return the kernel's letter for a process: "T" if it is stopped, "Z" if it has ended, also once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes between the opening and the reading
        return "Z"


def is_stopped(pid):
    return state(pid) == "T"


def continued(folder, rank):
    """Continue a rank once it is stopped."""
    note = Path(folder) / f"{rank}.pid"
    wait_until(lambda: note.is_file() and note.read_text("utf-8") and is_stopped(note.read_text("utf-8")))
    os.kill(int(note.read_text("utf-8")), signal.SIGCONT)


def stop_here(folder, rank):
    """Stop this process with all its threads, as a debugger, a batch system or a frozen container does."""
    (Path(folder) / f"{rank}.pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def trained(rank, timeout, stops=(), folder=""):
    """Train, and return the sizes of every step and the final weights; the second rank stops itself at some steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = BalancedLoader(torch.utils.data.TensorDataset(torch.randn(STEPS * GLOBAL_BATCH, 4)), GLOBAL_BATCH)
    balance = attach(model, loader, predictor=EWMA(), policy=Policy(warmup=1), timeout=timeout)
    sizes = []
    for step, (inputs,) in enumerate(loader):
        sizes.append(loader.batch_sizes.tolist())
        balance.measured(0.001 * len(inputs) * (1 + rank))
        if rank == 1 and step in stops:
            stop_here(folder, rank)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    balance.close()
    return sizes, [one.tolist() for one in model.parameters()]


def stopped_for_a_while(rank, folder):
    """Train twice, once with stops that last until the other rank waits for the stopped one."""
    plain, stops = trained(rank, 20.0), (2, 3, 9)

    def continue_all():
        for _ in stops:
            wait_until(lambda: is_stopped(pid()))
            time.sleep(0.3)
            os.kill(int(pid()), signal.SIGCONT)
            wait_until(lambda: not is_stopped(pid()))

    def pid():
        wait_until((Path(folder) / "1.pid").exists)
        return (Path(folder) / "1.pid").read_text("utf-8") or "self"

    other = threading.Thread(target=continue_all, daemon=True)
    if rank == 0:
        other.start()
    found = trained(rank, 20.0, stops, folder)
    if rank == 0:
        other.join(10)
    return plain, found, other.is_alive()


def test_short_stop_changes_only_time(tmp_path):
    results = run_ranks(2, stopped_for_a_while, str(tmp_path))
    for plain, found, unfinished in results:
        assert found == plain
        assert not unfinished
    assert results[0] == results[1]
    sizes, _ = results[0][0]
    assert sizes[-1][0] > sizes[-1][1]


def stopped_for_too_long(rank, folder):
    """Train beside a rank that stops for good; the first continues it when all others have ended."""
    try:
        trained(rank, 4.0, (4,), folder)
    except RuntimeError:
        (Path(folder) / f"{rank}.ended").touch()
        if rank == 0:
            wait_until((Path(folder) / "2.ended").exists)
            continued(folder, 1)
        raise


def test_long_stop_ends_all_ranks(tmp_path):
    first, stopped, third = outcomes_of(3, stopped_for_too_long, str(tmp_path), within=60)
    for other in (first, third):
        assert "lost contact with the others: a rank has died, or has not answered within 4 s" in other.error
    assert "LostRankError: rank 1 of 3 lost contact with the others" in stopped.error
    assert [one.exitcode for one in (first, stopped, third)] == [1, 1, 1]


# -- the asynchronous parameter server ---------------------------------------------------------------------------


def asynchronous(rank, folder, server_lives, scheme, timeout):
    """Train beside a rank that stops at its first batch; continue it when the others have ended, or the server too.

    Behind a barrier it comes last, so that the others wait for longer than it is silent.
    """
    from paceline.parameter_server import AsyncJob

    folder = Path(folder)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    torch.manual_seed(0)
    inputs = torch.randn(48, 4)
    model = torch.nn.Linear(4, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.05)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    job = AsyncJob(model, optim, dataset, batch=8, epochs=3, scheme=scheme, patience=0.3, timeout=timeout)
    if rank == 1 and scheme == "bsp":
        wait_until((folder / "2.pushed").exists)
    for number, (batch, targets) in enumerate(job):
        if rank == 1 and not number:
            stop_here(folder, 1)
        elif not number and scheme != "bsp":  # else they might take all batches before it has one
            wait_until(lambda: is_stopped((folder / "1.pid").read_text("utf-8") or "self"))
        optim.zero_grad()
        (model(batch) - targets).square().mean().backward()
        job.push()
        (folder / f"{rank}.pushed").touch()
    (folder / f"{rank}.ended").touch()
    if rank == 0 and server_lives:
        continued(folder, 1)
        wait_until((folder / "1.ended").exists)
    if rank == 2 and not server_lives:
        wait_until(lambda: state((folder / "0.pid").read_text("utf-8")) == "Z")
        continued(folder, 1)
    applied = 0 if job.service is None else job.service.server.sampler.applied
    return [one.tolist() for one in model.parameters()], applied


def test_stopped_worker_gets_final_parameters(tmp_path):
    (first, applied), (second, _), (third, _) = run_ranks(3, asynchronous, str(tmp_path), True, "saps", 20.0)
    assert applied == 3 * 48
    assert first == second == third


@pytest.mark.parametrize("scheme", ["bsp", pytest.param("saps", marks=pytest.mark.soak)])
def test_stopped_worker_behind_barrier_is_lost(tmp_path, scheme):
    """Workers that waited for it gave the server up as soon as the server gave it up."""
    first, stopped, third = outcomes_of(3, asynchronous, str(tmp_path), False, scheme, 3.0, within=60)
    assert (first.error, third.error) == ("", "")
    assert first.value == (third.value[0], 3 * 48)
    assert "LostServerError: the server on rank 0 does not answer" in stopped.error
    assert [one.exitcode for one in (first, stopped, third)] == [0, 1, 0]
