"""Balanced training on a CUDA device: on a stand-in that knows who waits for it, and late by chance."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.coordinator import Policy
from paceline.predictors import RLS, LastValue
from paceline.recording import Recorder, merge, watch
from paceline.torch import BalancedLoader, attach

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(HERE / "standin"), str(HERE / "loops")]

from standin import stand_in  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_listens_afterwards():
    """A model that was balanced here is garbage by now; as long as it is there, its timer asks a device for events."""
    yield
    gc.collect()


@pytest.fixture
def device():
    with stand_in() as installed:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield installed
        dist.destroy_process_group()


def ours(waits):
    """Those of the places that lie in the library."""
    package = Path(paceline.__file__).parent
    rooms = [str(package), *(str(room.resolve()) for room in package.iterdir())]
    return [place for place in waits if place.startswith(tuple(rooms))]


class Load:
    """A covariate that a test sets."""

    name, unit, now = "load", "share", 0.0

    def sample(self):
        return self.now


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("center", torch.zeros(2))

    def forward(self, inputs):
        return self.layer(inputs) - self.center


@pytest.mark.slow
def test_loop_never_waits_for_the_device(device):
    load = Load()
    model, loader = DistributedDataParallel(Net().to("cuda")), BalancedLoader(torch.randn(24 * 16, 4), 16)
    balance = attach(model, loader, predictor=RLS(covariates=["load"]), policy=Policy(warmup=2), covariates=[load])
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    balance.on_iteration.append(lambda one: seen.append((one.seconds[0], one.sizes[0])))
    for number, inputs in enumerate(loader):
        load.now = float(number % 3)
        optimizer.zero_grad()
        outputs = model(inputs.to("cuda"))
        device.streams.sleep(0.005)
        outputs.square().mean().backward()
        optimizer.step()
        if number % 5 == 0:
            device.streams.current_stream().until_seen()  # the loop prints its loss
    assert not ours(device.waits)
    assert balance.balancer.horizon == 2
    seconds = np.array([own for own, _ in seen])
    assert np.isfinite(seconds).any()
    assert (seconds[np.isfinite(seconds)] >= 0.00499).all()
    assert {size for _, size in seen} == {16}
    balance.close()


def test_a_device_that_runs_out_of_memory_is_survived(device):
    model, loader = DistributedDataParallel(Net().to("cuda")), BalancedLoader(torch.randn(160, 4), 16)
    balance = attach(model, loader, predictor=LastValue(), policy=Policy(warmup=1))
    for number, inputs in enumerate(loader):
        if number == 3:
            device.memory.limit = device.memory.allocated
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.ones(64, device="cuda")
            balance.ran_out_of_memory()
            device.memory.limit = float("inf")
        model(inputs.to("cuda")).mean().backward()
        model.zero_grad()
    assert np.isfinite(balance.plan.forecast.speed).all()
    balance.close()


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


# -- loops on two ranks ------------------------------------------------------------------------------------------

VERDICTS = {
    "a_plain_loop": "exact",
    "a_summed_loss": "warned",
    "sparse_gradients": "exact",
    "a_refusal_that_one_rank_alone_has_cause_for": "refused",
    "another_model_after_a_refusal": "exact",
}
"""Loops whose verdict came about, on a device, in another way than on a CPU."""


@pytest.mark.checkout
def test_loops_get_the_verdict_that_they_get_on_a_cpu():
    import shapes  # noqa: F401 (registers them)
    from verdicts import SHAPES

    chosen = {shape.run.__name__: shape for shape in SHAPES if shape.run.__name__ in VERDICTS}
    seen, _ = run_ranks(2, on_a_device, list(chosen))
    for name, shape in chosen.items():
        one = seen[name]
        if shape.verdict == "refused":
            assert all(shape.says in error for error in one["errors"]), one
            continue
        assert not any(one["errors"]), one
        if shape.verdict.startswith("exact"):
            assert one["deviation"] < 1e-12, one
        if shape.says:
            assert any(shape.says in sentence for sentence in one["warned"]), one


def on_a_device(rank, names):
    """Run loops on this rank, which finds a device."""
    os.environ["PACELINE_LOOPS_DEVICE"] = "cuda"
    sys.path.insert(0, str(HERE.parent / "benchmarks" / "gpu_parts"))
    from place import Place

    Place(latest=0.0003)  # why it is so little, loop_rank.py says
    from run import run

    return run(rank, names)
