"""Counters of a GPU, read with a library that the test pretends."""

import math
from types import SimpleNamespace

import pytest
import torch

from paceline.recording import covariates as nvml


@pytest.fixture
def library(monkeypatch):
    """A library of three GPUs whose calls are noted."""
    calls = []
    own = SimpleNamespace(NVMLError=type("NVMLError", (Exception,), {}), NVML_CLOCK_SM=4, calls=calls)
    own.nvmlInit = lambda: calls.append("begun")
    own.nvmlDeviceGetHandleByIndex = lambda number: f"gpu {number}" if number < 3 else own.fail()
    own.nvmlDeviceGetHandleByUUID = lambda name: f"named {name}"
    own.nvmlDeviceGetMaxClockInfo = lambda handle, kind: calls.append((handle, kind)) or 2000
    own.nvmlDeviceGetClockInfo = lambda handle, kind: calls.append((handle, kind)) or 500

    def fail():
        raise own.NVMLError

    own.fail = fail
    monkeypatch.setitem(__import__("sys").modules, "pynvml", own)
    monkeypatch.setattr(nvml, "find_spec", lambda name: name == "pynvml" or None)
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return own


@pytest.mark.parametrize(
    ("visible", "rank", "device", "handle"),
    [
        (None, None, None, "gpu 0"),
        (None, "2", None, "gpu 2"),
        (None, "2", 1, "gpu 1"),
        (None, None, 3, None),
        ("2, 0", None, 1, "gpu 0"),
        ("2, GPU-a ", "1", None, "named GPU-a"),
        ("1", None, 1, None),
        ("", None, None, "named "),
    ],
)
def test_the_clock_of_a_gpu_is_that_of_its_number_among_the_visible(
    library, monkeypatch, visible, rank, device, handle
):
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("LOCAL_RANK", rank)):
        if value is not None:
            monkeypatch.setenv(name, value)
    found = nvml.nvml_covariates(device)
    assert library.calls[0] == "begun"
    if handle is None:
        assert found == []
    else:
        assert [one.name for one in found] == ["gpu_busy", "gpu_memory", "gpu_clock"]
        assert found[2].sample() == 0.25
        assert library.calls[1:] == [(handle, 4), (handle, 4)]
        assert math.isnan(nvml._OfGPU(library, handle).sample())


def test_gpu_of_the_model_is_asked(library, monkeypatch):
    """Ranks that share a card, or whose cards CUDA numbers otherwise than NVML: the model's device counts, by name."""
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert nvml.nvml_covariates() == []
    assert nvml.nvml_covariates(torch.device("cpu")) == []
    assert nvml.nvml_covariates(torch.device("cuda", 0))[0]._handle == "gpu 0"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"uuid-{number}"))
    assert nvml.nvml_covariates()[0]._handle == "named GPU-uuid-1"
    assert nvml.nvml_covariates(torch.device("cuda", 0))[0]._handle == "named GPU-uuid-0"
