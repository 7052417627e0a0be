"""Recording by hooks: PyTorch's own loops, Lightning's and Hugging Face's, and commands nobody edited."""

import math
import os
import socket
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.datasets import Trace
from paceline.recording import Recorder, merge, phase_table, watch

torch = pytest.importorskip("torch")

DDP_SCRIPT = """
import os, sys, time

import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for k in range(int(sys.argv[1])):
    output = model(torch.ones(4 + 4 * rank, 8))
    time.sleep(0.03 * rank)
    optimizer.zero_grad()
    output.mean().backward()
    optimizer.step()
    if k == int(sys.argv[2]):
        os._exit(7)
print("parameters", sum(p.double().sum().item() for p in model.parameters()))
distributed.destroy_process_group()
"""


def torchrun(folder, *arguments):
    script = folder / "train.py"
    script.write_text(DDP_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    return [*command, str(script), *map(str, arguments)]


def recorded(folder, command):
    """Run ``paceline record`` on a command."""
    return CliRunner().invoke(app, ["record", "--out", str(folder), "--name", "train", "--", *command])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def linear():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, sizes=(8,), pause=0.0):
    optimizer.zero_grad()
    for size in sizes:
        output = model(torch.ones(size, 4))
        time.sleep(pause)
        output.sum().backward()
    optimizer.step()


@pytest.mark.slow
def test_phases_add_up(tmp_path):
    model, optimizer = linear()
    optimizer.register_step_pre_hook(lambda *_: None)
    slow = torch.nn.Sequential(model, Sleep(0.02))
    with Recorder(tmp_path / "0.jsonl", "0") as recorder, watch(slow, optimizer, recorder):
        for _ in range(3):
            train(slow, optimizer, pause=0.04)
            time.sleep(0.06)
    table, trace = phase_table([tmp_path / "0.jsonl"]), merge([tmp_path / "0.jsonl"])
    assert len(table) == len(trace) == 3
    assert (table["forward_seconds"] >= 0.02).all()
    assert (table["backward_seconds"] >= 0.04).all()
    assert math.isnan(table["between_seconds"][0])
    assert (table["between_seconds"][1:] >= 0.06).all()
    parts = table[["between_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"]].sum(axis=1)
    np.testing.assert_allclose(table["seconds"], parts, rtol=0.2)
    np.testing.assert_array_equal(trace.seconds[:, 0], table["seconds"])


class Sleep(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x


def test_accumulation_is_one_evaluation_none(tmp_path):
    model, optimizer = linear()
    with Recorder(tmp_path / "0.jsonl", "0") as recorder, watch(model, None, recorder):
        for _ in range(2):
            train(model, optimizer, sizes=(8, 5, 3))
            with torch.no_grad():
                model(torch.ones(100, 4))
            model.eval()
            model(torch.ones(100, 4))
            model.train()
    np.testing.assert_array_equal(merge([tmp_path / "0.jsonl"]).samples[:, 0], [16, 16])


def test_watching_does_not_change_training(tmp_path):
    weights = []
    for watched in (False, True):
        torch.manual_seed(3)
        model, optimizer = linear()
        with Recorder(tmp_path / f"{watched}.jsonl", "0") as recorder:
            watching = watch(model, optimizer, recorder) if watched else None
            for size in (4, 7, 2):
                train(model, optimizer, sizes=(size,))
            if watching:
                watching.close()
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


def test_close_removes_hooks(tmp_path):
    (model, optimizer), (other, other_optimizer) = linear(), linear()
    with Recorder(tmp_path / "0.jsonl", "0") as recorder:
        with watch(model, None, recorder):
            train(model, optimizer)
            train(other, other_optimizer)
        train(model, optimizer)
    assert len(merge([tmp_path / "0.jsonl"])) == 1


@pytest.mark.processes
def test_failing_command_keeps_status_and_trace(tmp_path, monkeypatch):
    """One worker, as torchrun would start it, ends itself in the middle of its iterations."""
    as_one_rank(monkeypatch)
    done = recorded(tmp_path, [sys.executable, *torchrun(tmp_path, 100, 20)[-3:]])
    assert done.exit_code == 7, done.output
    trace = Trace.load(tmp_path / "train.parquet")
    assert len(trace) in (20, 21)  # the iteration in which the worker dies may be whole
    assert trace.meta["status"] == "7"


def as_one_rank(monkeypatch):
    """Start what follows as torchrun would start the only worker of a job."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.processes
def test_unrecordable_worker_trains_on(tmp_path, monkeypatch, capfd):
    as_one_rank(monkeypatch)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    command = [sys.executable, *torchrun(tmp_path, 3, -1)[-3:]]
    script, taken = tmp_path / "train.py", tmp_path / "train" / "rank0.2.jsonl"
    script.write_text(f"import pathlib\npathlib.Path({str(taken)!r}).write_text('kept')\n" + script.read_text("utf-8"))
    done = recorded(tmp_path, command)
    assert "no iteration was recorded" in str(done.exception)
    printed = capfd.readouterr()
    assert printed.out.startswith("parameters ")
    assert "paceline: rank 0 is not recorded: FileExistsError(" in printed.err
    assert taken.read_text("utf-8") == "kept"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A process group of this process alone."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    monkeypatch.setenv("RANK", "0")
    yield distributed
    distributed.destroy_process_group()


def test_own_communication_hook_is_timed(tmp_path, alone):
    """The hook doubles the gradient, and takes 20 ms."""

    def doubled(state, bucket):
        time.sleep(0.02)
        return alone.all_reduce(bucket.buffer().mul_(2), async_op=True).get_future().then(lambda f: f.value()[0])

    model, optimizer = linear()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with Recorder(tmp_path / "rank0.jsonl", "0") as recorder, watch(wrapped, optimizer, recorder) as watching:
        wrapped.register_comm_hook(None, watching.time_hook(doubled))
        for _ in range(3):
            train(wrapped, optimizer)
    assert torch.equal(model.weight.grad, torch.full((1, 4), 16.0))
    trace = merge([tmp_path / "rank0.jsonl"])
    assert len(trace) == 3
    assert (trace.comm_seconds >= 0.02).all()


def test_earlier_hook_is_not_replaced_silently(tmp_path, alone):
    model, optimizer = linear()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, lambda state, bucket: None)
    with (
        Recorder(tmp_path / "0.jsonl", "0") as recorder,
        watch(wrapped, optimizer, recorder),
        pytest.raises(RuntimeError, match=r"register `watching\.time_hook\(hook\)`"),
    ):
        train(wrapped, optimizer)


@pytest.mark.processes
def test_other_sitecustomize_runs_too(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys; sys.theirs = 'ran'")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])
    code = "import sys; sys.exit(0 if sys.theirs == 'ran' else 9)"
    assert "no iteration was recorded" in str(recorded(tmp_path, [sys.executable, "-c", code]).exception)
