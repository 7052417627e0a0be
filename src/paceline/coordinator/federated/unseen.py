"""Clients that never reported: drawn from the clients of their device type.

Axes: M clients that reported; W clients of one round; D device types, the first of them "not known".
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.federated.round_reasons import ForecastSource

UNKNOWN_SPREAD = 0.2
"""Log deviation between clients, or of a client from its forecast, where nothing was compared yet."""

AS_MANY = 2.0
"""So many clients of a type count as much for its deviation as that of all clients does."""


def drawn(log_M: Array, device_M: Sizes, device_W: Sizes, prior: float) -> tuple[Array, Array, Sizes]:
    """Return mean and deviation of the log speed of a client of each device type, and its `ForecastSource`, ``[W]``.

    Where no client of the type has reported, those of all clients; where nobody has, the prior, infinitely uncertain.

    Examples
    --------
    >>> log, device = np.log([10.0, 40.0, 500.0]), np.array([1, 1, 2])
    >>> mean, deviation, source = drawn(log, device, np.array([1, 2, 0]), prior=0.0)
    >>> np.exp(mean).round(), deviation.round(1), source
    (array([ 20., 500.,  58.]), array([2.1, 2.8, 2.3]), array([1, 1, 2]))
    """
    if not len(log_M):
        nobody = np.full(len(device_W), ForecastSource.NOTHING, dtype=np.int64)
        return np.full(len(device_W), prior), np.full(len(device_W), np.inf), nobody
    count_D = np.bincount(device_M, minlength=int(device_W.max(initial=0)) + 1)
    mean_D = np.bincount(device_M, log_M, len(count_D)) / np.maximum(count_D, 1)
    squares_D = np.bincount(device_M, np.square(log_M - mean_D[device_M]), len(count_D))
    fleet = float(np.var(log_M, ddof=1)) if len(log_M) > 1 else UNKNOWN_SPREAD**2
    variance_D = (
        (squares_D + AS_MANY * fleet) / (np.maximum(count_D, 1) - 1 + AS_MANY) * (1 + 1 / np.maximum(count_D, 1))
    )
    # Clients whose type is not known have nothing in common: index 0 is no type.
    typed_W = (device_W > 0) & (count_D[device_W] > 0)
    mean_W = np.where(typed_W, mean_D[device_W], log_M.mean())
    variance_W = np.where(typed_W, variance_D[device_W], fleet * (1 + 1 / len(log_M)))
    return mean_W, np.sqrt(variance_W), np.where(typed_W, ForecastSource.DEVICE, ForecastSource.FLEET)
