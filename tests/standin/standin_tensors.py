"""Tensors of a CUDA device that is not there: the CPU keeps them, and says that a device does.

A tensor counts as the device's unless it was made on the CPU by one of torch's constructors, or from numpy. What is
made from such tensors, other than views, counts as the device's again: too much is taken for it, never too little.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import ClassVar

import torch
from torch.utils._device import _device_constructors

READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__")
"""Methods by which the CPU waits for a tensor's numbers."""

FROM_HOST = ("from_numpy", "frombuffer")


class Memory:
    """The memory of the device: what is allocated, the most that ever was, and a limit.

    Parameters
    ----------
    limit
        Bytes that there are.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.allocated = self.peak = 0
        self._lock = threading.RLock()  # a collection of garbage may free while memory is taken

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a new tensor until its storage is freed."""
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        with self._lock:
            if self.allocated + size > self.limit:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size} bytes, {self.allocated} of {self.limit:g} are taken"
                )
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self._give, size).atexit = False
        return tensor

    def _give(self, size: int) -> None:
        with self._lock:
            self.allocated -= size


class Tensors:
    """Replaces what moves tensors to the device, makes them there, and reads them.

    Parameters
    ----------
    memory
        Counts them.
    waited
        Called whenever the CPU reads numbers of the device.
    """

    _host: ClassVar[dict[int, int]] = {}
    """Addresses of what lies in main memory: of all stand-ins, as what one has made may outlive it."""

    def __init__(self, memory: Memory, waited) -> None:
        self.memory, self.waited = memory, waited
        self._before: list[tuple[object, str, object]] = []
        self._reading = threading.local()
        self._real_device = torch.Tensor.device.__get__

    def install(self) -> None:
        """Replace them, in this process."""
        for make in _device_constructors():
            if getattr(torch, make.__name__, None) is make:
                self._replace(torch, make.__name__, self._made(make))
        for name in FROM_HOST:
            self._replace(torch, name, self._made(getattr(torch, name)))
        for name in READS:
            self._replace(torch.Tensor, name, self._read(getattr(torch.Tensor, name)))
        self._replace(torch.Tensor, "to", self._moved(torch.Tensor.to))
        self._replace(torch.Tensor, "cuda", lambda tensor, *_, **named: tensor.to("cuda"))
        self._replace(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
        device = self._real_device
        self._replace(torch.Tensor, "is_cuda", property(self.on_device))
        self._replace(
            torch.Tensor,
            "device",
            property(lambda t: torch.device("cuda", 0) if self.on_device(t) else device(t)),
        )

    def remove(self) -> None:
        """Put everything back."""
        for holder, name, original in reversed(self._before):
            if original is None:
                delattr(holder, name)
            else:
                setattr(holder, name, original)
        self._before.clear()

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor counts as the device's."""
        if self._real_device(tensor).type != "cpu":  # tensors without numbers
            return False
        try:
            return tensor.untyped_storage().data_ptr() not in self._host
        except RuntimeError:  # sparse and meta tensors have no data pointer
            return False
        except ValueError:  # a parameter of a layer that does not know its size yet
            return True

    def _replace(self, holder: object, name: str, new: object) -> None:
        self._before.append((holder, name, vars(holder).get(name)))
        setattr(holder, name, new)

    def _made(self, make):
        @functools.wraps(make)
        def made(*args, **named):
            device = named.get("device")
            named.pop("pin_memory", None)
            if device is None or not is_cuda(device):
                return self._on_host(make(*args, **named))
            return self.memory.take(make(*args, **{**named, "device": "cpu"}))

        return made

    def _on_host(self, tensor):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            self._host[place] = self._host.get(place, 0) + 1
            weakref.finalize(storage, self._freed, place).atexit = False
        return tensor

    def _freed(self, place: int) -> None:
        self._host[place] -= 1
        if not self._host[place]:
            del self._host[place]

    def _moved(self, to):
        @functools.wraps(to)
        def moved(tensor, *args, **named):
            if torch.nn.parameter.is_lazy(tensor):
                return tensor
            if not any(map(is_cuda, (*args[:1], named.get("device")))):
                reads = any(str(one) == "cpu" for one in (*args[:1], named.get("device")))
                if reads and self.on_device(tensor) and not named.get("non_blocking"):
                    self.waited()
                return self._on_host(to(tensor, *args, **named).clone()) if reads else to(tensor, *args, **named)
            args = ("cpu", *args[1:]) if args and is_cuda(args[0]) else args
            if "device" in named:
                named = {**named, "device": "cpu"}
            if self.on_device(tensor):
                return to(tensor, *args, **named)
            return self.memory.take(to(tensor, *args, **{**named, "copy": True}))

        return moved

    def _read(self, read):
        @functools.wraps(read)
        def reading(tensor, *args, **named):
            inside = getattr(self._reading, "inside", False)
            if not inside and self.on_device(tensor):
                self.waited()
            self._reading.inside = True
            try:
                found = read(tensor, *args, **named)
                return self._on_host(found.clone()) if read.__name__ == "cpu" else found
            finally:
                self._reading.inside = inside

        return reading


def is_cuda(device: object) -> bool:
    """Whether an argument names a CUDA device."""
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
