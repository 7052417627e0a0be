"""A probe: an unedited script is recorded with batches of two sizes, and stops by itself."""

import os
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from paceline.cli.main import app  # noqa: E402
from paceline.datasets import Trace  # noqa: E402
from paceline.eval import simulate  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, accumulate = dist.get_rank(), int(sys.argv[1])
data = TensorDataset(torch.randn(2000, 4))

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002 + 0.03 * rank)
        return x

model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), Slow()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for number, (x,) in enumerate(DataLoader(data, batch_size=8, sampler=DistributedSampler(data))):
        model(x).pow(2).mean().backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # as this process has it
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def probe(folder, *options):
    """Record a probe of a script that would go on for longer, and return its trace."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    told = ["record", "--probe", "--iterations", "80", "--out", str(folder), "--", *launch, str(script), *options]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 0, done.output
    return Trace.load(folder / "train-probe.parquet")


def test_probe_tells_waiting_and_fixed_time_from_work(tmp_path):
    trace = probe(tmp_path, "2")
    assert len(trace) == 80
    assert {8, 16} <= set(np.unique(trace.samples)), "and 20 where an epoch ends in between"
    own, waited = np.median(trace.seconds, axis=0), np.median(trace.wait_seconds, axis=0)
    assert own[1] > own[0] + 0.03
    assert waited[0] > waited[1] + 0.03, "the wall time of a step is the same for both"
    assert (trace.comm_seconds[:, 0] == trace.comm_seconds[:, 1]).all()
    assert (trace.comm_seconds > 0).all()
    assert "torch.distributed.run" in trace.meta["command"]
    found = simulate(trace)
    assert not found.needs_probe
    assert found.high < 0.3, "0.9 if the delay followed the batch"
    assert (found.accumulate, found.job_batch) == (2, 16)
