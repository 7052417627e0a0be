"""Kernels that compete with a rank for its share of a CUDA device, on a stream of their own in the rank's process.

Processes that share a device take turns on it. A competing process would take its turn from all ranks; kernels of the
rank's own process take theirs from the rank alone.
"""

from __future__ import annotations

import threading

SIDE = 2048
"""Rows and columns of the matrices that are multiplied."""

AT_ONCE = 4
"""Products in the queue at a time: what is under way when the disturbance ends is soon over."""


class Kernels:
    """Multiplies matrices on a device while the disturbance is on.

    Parameters
    ----------
    device
        The rank's device.
    side
        Rows and columns of the matrices.
    """

    def __init__(self, device: str, side: int | None = None) -> None:
        self.device, self.side = device, SIDE if side is None else side
        self.products = 0
        self._on = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def turn(self, on: bool) -> None:
        """Begin or end the disturbance."""
        if on:
            self._on.set()
        else:
            self._on.clear()

    def _run(self) -> None:
        import torch

        with torch.cuda.stream(torch.cuda.Stream(self.device)):
            matrix = torch.ones(self.side, self.side, device=self.device)
            while self._on.wait():
                for _ in range(AT_ONCE):
                    matrix @ matrix
                done = torch.cuda.Event()
                done.record()
                done.synchronize()  # this thread waits, not the one that trains
                self.products += AT_ONCE
