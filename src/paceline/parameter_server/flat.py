"""A torch model as one flat row of float32 numbers, and its gradient likewise. Axis: P parameters."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _BatchNorm

Row = NDArray[np.float32]

FRONT = 128
"""Numbers of room before a row, 512 bytes: what a message says of a row travels in front of it, in one message."""


class FlatModel:
    """Makes a model's parameters, and their gradients, views of two flat rows: nothing is copied piece by piece.

    The model is changed in place and works on as before. Buffers, such as the running means of batch normalisation, are
    not parameters: each worker keeps its own.

    Parameters
    ----------
    model
        Any module whose parameters are on the CPU and dense.

    Attributes
    ----------
    parameters, gradient
        The rows, ``[P]``: write the first before a forward pass, read the second after the backward pass.
    down, up
        The same rows with room for a head in front, ``[FRONT + P]``: what comes from a server, and goes to it.

    Raises
    ------
    ValueError
        If the model has no parameters that are trained, or some that are not float32 on the CPU.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> flat = FlatModel(model)
    >>> flat.parameters[:] = [1.0, 2.0]
    >>> model(torch.tensor([[3.0, 5.0]])).sum().backward()
    >>> flat.gradient
    array([3., 5.], dtype=float32)
    """

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that requires a gradient: there is nothing to train")
        if wrong := sorted({f"{p.dtype} on {p.device}" for p in trained} - {"torch.float32 on cpu"}):
            raise ValueError(f"parameters must be torch.float32 on the CPU, got {wrong}: move the model before")
        self.model = model
        # Contiguous copies first: the rows must not share memory with the parameters that they replace.
        self.down, self.up = (torch.zeros(FRONT + sum(parameter.numel() for parameter in trained)) for _ in range(2))
        row, slope = self.down[FRONT:], self.up[FRONT:]
        torch.cat([parameter.detach().reshape(-1) for parameter in trained], out=row)
        self._pairs = []
        start = 0
        for parameter in trained:
            end = start + parameter.numel()
            parameter.data = row[start:end].view(parameter.shape)
            parameter.grad = slope[start:end].view(parameter.shape)
            self._pairs.append((parameter, parameter.grad))
            start = end
        self.row, self.slope = row, slope
        self.parameters: Row = row.numpy()
        self.gradient: Row = slope.numpy()

    def zero(self) -> None:
        """Set the gradient to zero, and let it be the flat row again where a loop has set it to none."""
        self.slope.zero_()
        for parameter, slope in self._pairs:
            parameter.grad = slope

    def lay(self, gradient: torch.Tensor) -> None:
        """Let parts of a row, ``[P]``, be the gradients until the next call, without a copy."""
        start = 0
        for parameter, _ in self._pairs:
            end = start + parameter.numel()
            parameter.grad = gradient[start:end].view(parameter.shape)
            start = end

    def gather(self) -> Row:
        """Return the gradient, ``[P]``, also where a loop has put other tensors in place of the views."""
        for parameter, slope in self._pairs:
            if parameter.grad is None:
                slope.zero_()
            elif parameter.grad is not slope:
                slope.copy_(parameter.grad)
                parameter.grad = slope
        return self.gradient

    @property
    def buffers(self) -> int:
        """Number of values that the model keeps beside its parameters."""
        return sum(buffer.numel() for buffer in chain(self.model.buffers()))


def least_of(model: torch.nn.Module) -> int:
    """Return the fewest samples that a step of this model can be made of.

    >>> least_of(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))), least_of(torch.nn.Linear(2, 2))
    (2, 1)
    """
    return 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1
