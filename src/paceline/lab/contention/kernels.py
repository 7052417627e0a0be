"""Kernels that compete with a rank for its share of a CUDA device, on a stream of their own in the rank's process.

Processes that share a device take turns on it. A competing process would take its turn from all ranks; kernels of the
rank's own process take theirs from the rank alone.
"""

from __future__ import annotations

import threading


class Kernels:
    """Multiplies matrices on a device while the disturbance is on.

    Parameters
    ----------
    device
        The rank's device.
    side
        Rows and columns of the matrices.
    """

    def __init__(self, device: str, side: int = 2048) -> None:
        self.device, self.side = device, side
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
                for _ in range(4):  # a short queue, so that little is left to do when the disturbance ends
                    matrix @ matrix
                finished = torch.cuda.Event()
                finished.record()
                finished.synchronize()  # this thread waits, not the one that trains
                self.products += 4
