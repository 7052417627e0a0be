"""Convert states of arrays to tensors and lists, so that ``torch.load(weights_only=True)`` reads checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_torch(state: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return numbers as tensors and texts as lists.

    >>> to_torch({"workers": np.array(["a", "b"]), "sizes": np.array([3, 5])})
    {'workers': ['a', 'b'], 'sizes': tensor([3, 5])}
    """
    return {
        name: array.tolist() if array.dtype.kind in "US" else torch.from_numpy(np.array(array))
        for name, array in ((name, np.asarray(value)) for name, value in state.items())
    }


def from_torch(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``to_torch`` converted.

    >>> from_torch({"sizes": torch.tensor([3, 5])})
    {'sizes': array([3, 5])}
    """
    return {
        name: value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else np.array(value, dtype=np.str_)
        for name, value in state.items()
    }
