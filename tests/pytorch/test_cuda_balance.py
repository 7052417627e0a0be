"""Balanced training on a CUDA device: on a stand-in that knows who waits for it, and late by chance."""

import gc
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.coordinator import Policy
from paceline.integrations.huggingface_options import loading
from paceline.lab import Setting
from paceline.lab.disturbance import Kernels
from paceline.lab.experiment_worker import Contestant
from paceline.predictors import RLS, LastValue
from paceline.torch import BalancedLoader, attach
from paceline.torch.buffers import Buffers
from paceline.torch.loss_kind import Norms

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(HERE / "standin"), str(HERE / "loops")]

from standin import stand_in  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_listens_afterwards():
    """A model that was balanced here is garbage by now; as long as it is there, its clock asks a device for events."""
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
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, inputs):
        return self.layer(inputs) - self.centre


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


def test_buffers_on_a_device_are_not_read():
    with stand_in() as device:
        assert np.isnan(Buffers().sum([Net().to("cuda")], 0))
        assert not device.waits
    assert Buffers().sum([Net()], 0) == 0.0


@pytest.mark.parametrize("late", [False, True])
def test_device_norms_lag_one_step(late):
    with stand_in() as device:
        norms, told = Norms(late), []
        for step in range(1, 6):
            for micro_batch in (1.0, 3.0):
                norms.add(torch.exp(torch.full((), step * micro_batch, device="cuda" if late else "cpu")))
            assert norms.logs
            if late:
                assert not ours(device.waits)
            told.append(norms.take())
            device.streams.current_stream().until_seen()
        told.append(norms.take())
    means = [2.0 * step for step in range(1, 6)]
    np.testing.assert_allclose(told, [np.nan, *means] if late else [*means, np.nan], rtol=1e-6)


def test_late_device_norm_is_left_out():
    """All ranks tell of the same step, or nothing: an older one would be compared with other sizes."""
    with stand_in(latest=0.0) as device:
        norms = Norms(delayed=True)
        norms.add(torch.ones((), device="cuda"))
        norms.take()
        device.streams.sleep(0.05)
        norms.add(torch.full((), np.e, device="cuda"))
        norms.take()
        assert np.isnan(norms.take())
        device.streams.current_stream().until_seen()
        assert np.isnan(norms.take())


@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_trainer_pins_batches_with_a_device(kind, pinned):
    arguments = SimpleNamespace(dataloader_pin_memory=True, device=SimpleNamespace(type=kind), dataloader_num_workers=0)
    assert loading(arguments) == {"pin_memory": pinned}


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


# -- the live experiment -----------------------------------------------------------------------------------------


def test_live_refuses_missing_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be 'cpu', or 'cuda' where torch finds a device, got 'cuda' here"):
        Setting(device="cuda")
    with pytest.raises(ValueError, match="'kernels' needs a CUDA device"):
        Setting(contention="kernels")
    with pytest.raises(ValueError, match="precision must be 'single' or 'mixed', got 'half'"):
        Setting(precision="half")
    with stand_in():
        assert Setting(device="cuda", contention="kernels").turns


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_contestant_does_not_wait_for_the_device(device, precision):
    setting = Setting(device="cuda", precision=precision, global_batch=64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CUDA is not available")
        contestant = Contestant("ewma", setting)
        for _ in range(6):
            contestant.step()
    assert not [place for place in device.waits if "contestant.py" in place]
    assert len(contestant.losses) == len(contestant.weights) == 6
    contestant.finish()
    assert len(device.waits) == 1
    losses = [loss.item() for loss in contestant.losses]
    assert all(0 < loss < 10 for loss in losses)


@pytest.mark.slow
def test_disturbance_kernels_use_own_stream():
    with stand_in() as device:
        kernels = Kernels("cuda", side=4)
        kernels.turn(True)
        for _ in range(2000):
            if kernels.products:
                break
            torch.cuda.current_stream().until_seen()
            device.streams.sleep(0.005)
            torch.cuda.current_stream().until_seen()
        assert kernels.products
        kernels.turn(False)
        for _ in range(20):  # what is in the queue ends
            before = kernels.products
            device.streams.sleep(0.02)
            torch.cuda.current_stream().until_seen()
        assert kernels.products == before
