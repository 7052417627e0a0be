"""Profiles and fits on a CUDA device: on a stand-in for it, and on tensors without numbers, which none can read."""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "standin"))

from standin import NAME, stand_in

from paceline.cli.main import main
from paceline.datasets import read_profiles, synthetic_fleet
from paceline.predictors import LSTM, NARX, GatedNARX, SimpleRNN, Training, torch_fit
from paceline.training import fit
from paceline.training import profile as profiling

SHORT = Training(epochs=2, batch_size=128)
NETWORKS = (NARX, GatedNARX, LSTM, SimpleRNN)


def busy(device, seconds):
    """Make a step that keeps the device busy for so long a sample, and holds a kilobyte a sample."""

    def make_step(batch_size, name):
        rows = torch.zeros(batch_size, 256).to(name)
        return lambda: device.streams.sleep(seconds * len(rows))

    return make_step


@pytest.mark.parametrize("limit", [30, 37, 100])
@pytest.mark.slow
def test_device_memory_limit_found_and_recovered(limit):
    with stand_in(limit=1024 * limit) as device:
        steps = busy(device, 1e-4)
        found = profiling.profile(steps, [8, 16, 32, 64, 128], device="cuda", warmup=0, repeats=2, max_passes=2)
        assert device.memory.allocated == 0
        steps(limit, "cuda")()
    fits = found.dropna(subset=["seconds"])
    assert fits["batch"].max() == pytest.approx(limit, abs=max(1.0, 0.05 * limit))
    assert fits["batch"].max() <= limit < found[found["seconds"].isna()]["batch"].min()
    assert set(found["device"]) == {NAME}


@pytest.mark.slow
def test_device_step_timed_by_events():
    with stand_in() as device:
        found = profiling.profile(busy(device, 1e-3), [4, 16], device="cuda", warmup=2, repeats=5, max_passes=1)
        assert len(device.waits) == 4, "before the first and after the last step of each size"
    for size, seconds in zip(found["batch"], found["seconds"], strict=True):
        assert seconds >= 0.999e-3 * size


@pytest.mark.slow
def test_the_command_profiles_on_a_device(tmp_path, capsys, monkeypatch):
    options = [
        "--device",
        "cuda",
        "--sizes",
        "1,2,4,1024",
        "--passes",
        "2",
        "--out",
        str(tmp_path / "p.csv"),
    ]
    monkeypatch.setattr(sys, "argv", ["paceline", "profile", *options])
    with stand_in(limit=2**20), contextlib.suppress(SystemExit):
        main()
    found = read_profiles(tmp_path / "p.csv")
    assert set(found["device"]) == {NAME}
    assert found["seconds"].isna().any()
    assert "memory limit" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("network", [NARX, GatedNARX])
def test_a_fit_on_the_device_is_that_of_the_cpu(network):
    trace = synthetic_fleet("mixed", 4, 120)
    alone = fit(network(training=SHORT), [trace], hold_out=0.0)
    with stand_in() as device:
        there = fit(network(training=SHORT), [trace], device="cuda", hold_out=0.0)
        assert device.memory.peak > 0, "nothing was moved to the device"
    for name, weight in alone.weights_.items():
        np.testing.assert_array_equal(weight, there.weights_[name])


def without_numbers(run):
    """Move the weights of a training, and the layer that holds them if there is one, to torch's device "meta"."""
    inside = [cell.cell_contents for cell in run.loss.__closure__]
    layers = [layer.to("meta") for layer in inside if isinstance(layer, torch.nn.Module)]
    moved = {name: weight for layer in layers for name, weight in layer.named_parameters()}
    for name, weight in run.weights.items():
        run.weights[name] = moved.get(f"{name}_l0", weight.detach().to("meta")).requires_grad_()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
def test_loss_needs_no_main_memory(network, monkeypatch):
    """Tensors on torch's device without numbers mix with no others, as those of a GPU do not; their graph is real."""
    computed = []

    def on_meta(run):
        kept = torch_fit.to_arrays(run.weights)
        batch, _ = next(run.batches())
        without_numbers(run)
        loss = run.loss(*(part.to("meta") for part in run.augment(batch)))
        loss.backward()
        assert {weight.grad.device.type for weight in run.weights.values()} == {"meta"}
        computed.append(loss.device.type)
        return kept

    monkeypatch.setattr(torch_fit.TrainingLoop, "run", on_meta)
    fit(network(training=SHORT), [synthetic_fleet("mixed", 8, 120)])
    assert set(computed) == {"meta"}


@pytest.mark.parametrize(("backend", "where"), [("nccl", "cuda"), ("gloo", "cpu")])
def test_agreed_values_lie_where_backend_sends(backend, where, monkeypatch):
    sent = []

    def broadcast(held, src):
        sent.append(held.device.type)
        held.fill_(0.25)

    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    with stand_in():
        assert torch_fit.broadcast_value(0.5) == 0.25
    assert sent == [where]


def test_gradients_added_on_their_device(monkeypatch):
    seen = []
    monkeypatch.setattr(dist, "all_reduce", lambda sums: seen.append(sums.device.type))
    with stand_in():
        weights = {name: torch.ones(3, device="cuda").requires_grad_() for name in "ab"}
        sum(weight.square().sum() for weight in weights.values()).backward()
        assert torch_fit.all_reduce_gradients(weights, 0.5) == 0.5
        assert {weight.grad.device.type for weight in weights.values()} == {"cuda"}
    assert seen == ["cuda"]
