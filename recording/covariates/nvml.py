"""Covariates of a GPU, read with NVML: how busy it is, how full its memory is, and how fast its clock runs.

NVML reports utilisation as an average over its last sample period (1/6 s to 1 s), usually several iterations.
"""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.recording.covariates.covariate import Covariate


def nvml_covariates(device: int | None = None) -> list[Covariate]:
    """Return the covariates of a GPU; none if there is no GPU, no NVML, or no pynvml.

    Parameters
    ----------
    device
        The GPU's number among those this process may use (``CUDA_VISIBLE_DEVICES``); by default ``LOCAL_RANK``, or 0
        if that is not set.

    Examples
    --------
    >>> [covariate.name for covariate in nvml_covariates(device=4096)]
    []
    """
    if find_spec("pynvml") is None:
        return []
    import pynvml

    number = int(os.environ.get("LOCAL_RANK", "0")) if device is None else device
    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, number)
        return [GPUBusy(pynvml, handle), GPUMemory(pynvml, handle), GPUClock(pynvml, handle)]
    except (pynvml.NVMLError, IndexError):
        return []


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
    # CUDA numbers only the GPUs that it may use, in the order of the variable; NVML always numbers all of them.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(number)
    name = visible.split(",")[number].strip()
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
