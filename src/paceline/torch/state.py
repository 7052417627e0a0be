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
    """Return the arrays that ``to_torch`` converted; arrays, as older states hold, stay arrays.

    >>> from_torch({"sizes": torch.tensor([3, 5])})
    {'sizes': array([3, 5])}
    """
    return {
        name: np.array(value.cpu().numpy() if isinstance(value, torch.Tensor) else value, _texts(value))
        for name, value in state.items()
    }


def _texts(value: Any) -> type[np.str_] | None:
    return np.str_ if isinstance(value, list | str) else None  # a list may be empty
