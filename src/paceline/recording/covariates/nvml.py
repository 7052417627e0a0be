"""Covariates of a GPU, read with NVML: how busy it is, how full its memory is, and how fast its clock runs.

NVML reports utilisation as an average over its last sample period (1/6 s to 1 s), usually several iterations.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from paceline.recording.covariates.covariate import Covariate


def nvml_covariates(device: int | torch.device | None = None) -> list[Covariate]:
    """Return the covariates of a GPU; none if there is no GPU, no NVML, or no pynvml.

    Parameters
    ----------
    device
        The device that the process computes on: a ``torch.device`` (of the CPU, there are no covariates), or a GPU's
        number among those this process may use (``CUDA_VISIBLE_DEVICES``). By default the current device of torch, or
        ``LOCAL_RANK`` where torch does not use CUDA yet, or 0 if that is not set.

    Examples
    --------
    >>> [covariate.name for covariate in nvml_covariates(device=4096)]
    []
    """
    if find_spec("pynvml") is None or getattr(device, "type", "cuda") != "cuda":
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, _number(device))
        return [GPUBusy(pynvml, handle), GPUMemory(pynvml, handle), GPUClock(pynvml, handle)]
    except (pynvml.NVMLError, IndexError):
        return []


def _number(device: int | torch.device | None) -> int:
    """Return the number of a device among those that this process may use."""
    if isinstance(device, int):
        return device
    if device is not None and device.index is not None:
        return device.index
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return int(cuda.current_device())
    return int(os.environ.get("LOCAL_RANK", "0"))


class _OfGPU:
    # One call of NVML on one GPU; NaN if this GPU does not support it.
    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def sample(self) -> float:
        """Return the value now; NaN if this GPU does not support it."""
        with contextlib.suppress(self._nvml.NVMLError):
            return self._read()
        return float("nan")

    def _read(self) -> float:
        return float("nan")


class GPUBusy(_OfGPU):
    """Share of time in which the GPU computed something, for any process."""

    name, unit = "gpu_busy", "share of time"

    def _read(self) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100


class GPUMemory(_OfGPU):
    """Share of the GPU's memory that any process uses."""

    name, unit = "gpu_memory", "share of memory"

    def _read(self) -> float:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return float(memory.used / memory.total)


class GPUClock(_OfGPU):
    """Clock of the GPU's processors as a share of the highest: lower when the GPU is hot, idle or throttled."""

    name, unit = "gpu_clock", "share of the highest clock"

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__(nvml, handle)
        self._highest = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)

    def _read(self) -> float:
        return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM) / self._highest)


def _handle(nvml: Any, number: int) -> Any:
    """Return NVML's handle of a GPU by its number among those that this process may use.

    CUDA numbers only these, in an order that the environment may change; NVML numbers all, by their place on the bus.
    So the GPU is found by its name, which torch knows once it uses the GPU.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with contextlib.suppress(nvml.NVMLError, AssertionError, AttributeError, RuntimeError):
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{cuda.get_device_properties(number).uuid}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(number)
    name = visible.split(",")[number].strip()
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
