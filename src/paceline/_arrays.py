"""Array types that every room uses. Their axes are part of an array's name: ``speed_TW``, ``sizes_W``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Measurements and forecasts; NaN means "not known"."""

Sizes = NDArray[np.int64]
"""Counts: batch sizes, and numbers of samples."""

Mask = NDArray[np.bool_]
"""Which entries a condition holds for."""
