"""A stand-in for CUDA on a machine without it: a process that installs it finds a device.

Streams and events are those of :mod:`standin_streams`, tensors and memory those of :mod:`standin_tensors`. It shows
whether code reads an event too early, waits for the device, or cannot do without memory; it computes on the CPU.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

import torch
from standin_streams import Event, Stream, Streams
from standin_tensors import Memory, Tensors

NAME = "stand-in"
CYCLES = 1e9
"""Cycles of the stand-in's clock in a second, as of ``torch.cuda._sleep``."""


ACCELERATORS = hasattr(torch, "accelerator")
"""Whether this torch has a module for accelerators of any kind."""


class StandIn:
    """The stand-in of one process.

    Parameters
    ----------
    devices, seed, latest
        How many devices, and how late: see :class:`Streams`.
    limit
        Bytes of memory of all devices together.
    tensors
        Whether tensors are to count as the device's; otherwise only ``torch.cuda`` is replaced.
    """

    def __init__(
        self, *, devices: int = 1, seed: int = 0, latest: float = 0.004, limit: float = 2**30, tensors: bool = True
    ) -> None:
        self.streams = Streams(devices, seed, latest)
        self.memory = Memory(limit)
        self._tensors = Tensors(self.memory, self.streams.read) if tensors else None
        self._before: dict[str, object] = {}

    @property
    def waits(self) -> list[str]:
        """Where the device was waited for."""
        return self.streams.waits

    def install(self) -> StandIn:
        """Let ``torch.cuda``, and tensors, be the stand-in's from now on, in this process."""
        torch.cuda.is_available()  # what torch reads once is read before
        for name, replaced in self._calls().items():
            self._before[name] = getattr(torch.cuda, name)
            setattr(torch.cuda, name, replaced)
        # Builds of torch for CUDA ask the driver, which may not be there, for graphs that are captured.
        self._accelerator = getattr(torch.accelerator, "current_accelerator", None) if ACCELERATORS else None
        if self._accelerator is not None:
            torch.accelerator.current_accelerator = lambda check_available=False: None
        if self._tensors is not None:
            self._tensors.install()
        return self

    def remove(self) -> None:
        """Put everything back."""
        if self._tensors is not None:
            self._tensors.remove()
        for name, original in self._before.items():
            setattr(torch.cuda, name, original)
        self._before.clear()
        if self._accelerator is not None:
            torch.accelerator.current_accelerator = self._accelerator

    def _calls(self) -> dict[str, object]:
        streams, memory = self.streams, self.memory
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: streams.devices,
            "current_device": streams.current_device,
            "set_device": streams.set_device,
            "device": streams.device,
            "current_stream": streams.current_stream,
            "stream": streams.stream,
            "synchronize": streams.synchronize,
            "Event": functools.partial(Event, streams),
            "Stream": lambda device=None, **_: Stream(streams, streams.number(device)),
            "get_device_name": lambda device=None: NAME,
            "empty_cache": lambda: None,
            "memory_allocated": lambda device=None: memory.allocated,
            "memory_reserved": lambda device=None: memory.allocated,
            "max_memory_allocated": lambda device=None: memory.peak,
            "reset_peak_memory_stats": lambda device=None: setattr(memory, "peak", memory.allocated),
            "mem_get_info": lambda device=None: (memory.limit - memory.allocated, memory.limit),
            "is_bf16_supported": lambda *_, **__: True,
            "_sleep": lambda cycles: streams.sleep(cycles / CYCLES),
        }


@contextmanager
def stand_in(**options):
    """Install a stand-in for the block."""
    installed = StandIn(**options).install()
    try:
        yield installed
    finally:
        installed.remove()
