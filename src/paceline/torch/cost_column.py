"""One number for each sample of a dataset: given as an array, read from a column, or computed. Axis: N samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array

Numbers = ArrayLike | str | Callable[[Any], float]
"""An array of one number for each sample, the name of a column, or what returns the number of a sample."""


def numbers_of(dataset: Any, source: Numbers, name: str, *, zeros: bool = False) -> Array:
    """Return the numbers of all samples, above 0 or with ``zeros`` not below, or refuse the argument of this name.

    The column of a Hugging Face dataset is read without its rows. A column of lists counts as their lengths. A
    function is called with every sample, once.

    Raises
    ------
    TypeError
        If a column is named and the dataset has none.
    ValueError
        If there is not one number for each sample, or a number is out of range: the sample is named.

    Examples
    --------
    >>> numbers_of(["a", "ccc"], len, "cost")
    array([1., 3.])
    >>> numbers_of(["a", "ccc"], [1.0, np.nan], "cost")
    Traceback (most recent call last):
    ValueError: cost must be finite and above 0, got nan for sample 1
    """
    if isinstance(source, str):
        values = _column(dataset, source, name)
    elif callable(source):
        values = np.array([source(dataset[number]) for number in range(len(dataset))], dtype=np.float64)
    else:
        values = np.array(source, dtype=np.float64)
    if values.shape != (len(dataset),):
        raise ValueError(
            f"{name} must hold one number for each of the {len(dataset)} samples, got the shape {values.shape}"
        )
    require_in_range(values, name, zeros=zeros)
    values.flags.writeable = False
    return values


def require_in_range(values_N: Array, name: str, *, first: int = 0, of: str = "", zeros: bool = False) -> None:
    """Refuse numbers that are not finite and above 0, or with ``zeros`` not below; the sample is named.

    Parameters
    ----------
    first, of
        The number of the first sample, and of what.

    >>> require_in_range(np.array([2.0, 0.0]), "lengths", first=40, of=" of the stream")
    Traceback (most recent call last):
    ValueError: lengths must be finite and above 0, got 0 for sample 41 of the stream
    """
    fine = np.isfinite(values_N) & ((values_N > 0) | (zeros & (values_N == 0)))
    if not fine.all():
        place, wanted = int(np.argmin(fine)), "not negative" if zeros else "above 0"
        raise ValueError(f"{name} must be finite and {wanted}, got {values_N[place]:g} for sample {first + place}{of}")


def _column(dataset: Any, column: str, name: str) -> Array:
    if not hasattr(dataset, "with_format") or column not in getattr(dataset, "column_names", ()):
        raise TypeError(
            f"{name}={column!r} names a column, which {type(dataset).__name__} does not have: give one number for each "
            "sample, or a function of a sample"
        )
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported, so no type checker sees them

    values = dataset.with_format("arrow").select_columns([column])[:][column].combine_chunks()
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.array(pc.list_value_length(values), dtype=np.float64)
