"""States of arrays as lists, which ``torch.load(weights_only=True)`` and distributed checkpoints read in any shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_lists(state: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return every array as a list of its type, its shape and its values.

    >>> to_lists({"workers": np.array(["a", "b"]), "sizes": np.array([3, 5])})
    {'workers': ['<U1', [2], ['a', 'b']], 'sizes': ['<i8', [2], [3, 5]]}
    """
    arrays = {name: np.asarray(value) for name, value in state.items()}
    return {name: [array.dtype.str, list(array.shape), array.ravel().tolist()] for name, array in arrays.items()}


def from_lists(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``to_lists`` converted.

    >>> from_lists({"sizes": ["<i8", [2], [3, 5]]})
    {'sizes': array([3, 5])}
    """
    return {name: np.array(values, dtype).reshape(shape) for name, (dtype, shape, values) in state.items()}
