"""``paceline record`` names the slow worker and its phase in jobs of every kind, which it does not edit."""

import os
import sys

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from paceline.cli.main import app

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

engine, cause = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
slow = (ranks > 2) + 1  # of four ranks the third, in the second replica

def spend(place, samples):
    "Real work and sleep with a fixed part; at the cause, the slow rank takes three times as long for samples."
    busy = 0.001 + 0.0002 * samples * (3 if place == cause and rank == slow else 1)
    until = time.perf_counter() + 0.4 * busy
    while time.perf_counter() < until:
        sum(range(100))
    time.sleep(0.6 * busy + (0.002 if place == cause and rank == slow else 0) + torch.rand(()).item() * 0.0005)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        spend("backward", len(grad))
        return grad

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        spend("forward", len(x) / 2)
        return Backward.apply(torch.relu(self.layer(x)))

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        return torch.full((64,), index / 2000)

def collate(samples):
    spend("data", len(samples))
    return torch.stack(samples)

model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(64, 1))
if engine == "ddp" or engine == "zero":
    model = DistributedDataParallel(model)
elif engine == "fsdp1":
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
elif engine in ("fsdp2", "hsdp"):
    names = ("replicate", "shard") if engine == "hsdp" else ("shard",)
    mesh = init_device_mesh("cpu", (2, ranks // 2) if engine == "hsdp" else (ranks,), mesh_dim_names=names)
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        spend("optimizer", 16)
        return super().step(closure)
if engine == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), Optimizer, lr=0.01)
else:
    optimizer = Optimizer(model.parameters(), lr=0.01)
for number, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=16, collate_fn=collate)):
    if number == 60:
        break
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    if engine == "plain":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    if cause == "network":
        dist.all_reduce(torch.zeros(3_000_000))
    optimizer.step()
dist.destroy_process_group()
"""

PHASE = {
    "data": "loading data or in the loop between steps",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
}
ENGINES = {"plain": 2, "zero": 2, "fsdp1": 2, "fsdp2": 2, "hsdp": 4}
QUICK = {("fsdp2", "backward")}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # as this process has it
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def record(folder, engine, cause):
    """Return what ``paceline record`` says about a job."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ENGINES[engine])]
    told = CliRunner().invoke(app, ["record", "--out", str(folder), "--", *launch, str(script), engine, cause])
    assert told.exit_code == 0, told.output
    return told.output


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        pytest.param(engine, cause, marks=() if (engine, cause) in QUICK else pytest.mark.soak)
        for engine in ENGINES
        for cause in PHASE
    ],
)
def test_the_slow_worker_and_its_phase_are_named(tmp_path, engine, cause):
    said = record(tmp_path, engine, cause)
    assert f"worker {2 if ENGINES[engine] > 2 else 1} is slow" in said
    assert f"ms of the difference in {PHASE[cause]}" in said


@pytest.mark.alone
@pytest.mark.parametrize("engine", [pytest.param("plain", marks=pytest.mark.soak), "fsdp2"])
def test_on_a_slow_network_no_worker_is_slow(tmp_path, engine):
    """In one of three runs: another process of the machine slows a worker indeed."""
    folders = [tmp_path / str(attempt) for attempt in range(3)]
    for folder in folders:
        folder.mkdir()
    assert any("no worker is slow" in record(folder, engine, "network") for folder in folders)
