"""Clients that never reported: drawn from the clients of their device type. Axes: M clients that reported; W clients of
one round; D device types, of which the first is "not known"; Z quantiles tried.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated.reasons import Source

UNKNOWN_SPREAD = 0.2
"""Log deviation between clients of which only one has reported."""

AS_MANY = 2.0
"""So many clients of a type count as much for its deviation as that of all clients does."""

QUANTILES: Array = np.linspace(0.0, 4.0, 81)
"""Normal scores to choose from; of a thousand clients the slowest is expected 3.2 deviations from the mean."""


def drawn(log_M: Array, device_M: Sizes, device_W: Sizes, prior: float) -> tuple[Array, Array, Sizes]:
    """Return mean and deviation of the log speed of a client of each device type, and its `Source`, ``[W]``.

    Where no client of the type has reported, those of all clients; where nobody has, the prior, infinitely uncertain.

    Examples
    --------
    >>> log, device = np.log([10.0, 40.0, 500.0]), np.array([1, 1, 2])
    >>> mean, deviation, source = drawn(log, device, np.array([1, 2, 0]), prior=0.0)
    >>> np.exp(mean).round(), deviation.round(1), source
    (array([ 20., 500.,  58.]), array([2., 2.8, 2.3]), array([1, 1, 2]))
    """
    if not len(log_M):
        nobody = np.full(len(device_W), Source.NOTHING, dtype=np.int64)
        return np.full(len(device_W), prior), np.full(len(device_W), np.inf), nobody
    count_D = np.bincount(device_M, minlength=int(device_W.max(initial=0)) + 1)
    mean_D = np.bincount(device_M, log_M, len(count_D)) / np.maximum(count_D, 1)
    squares_D = np.bincount(device_M, np.square(log_M - mean_D[device_M]), len(count_D))
    fleet = float(np.var(log_M, ddof=1)) if len(log_M) > 1 else UNKNOWN_SPREAD**2
    variance_D = (squares_D + AS_MANY * fleet) / (np.maximum(count_D, 1) - 1 + AS_MANY) * (1 + 1 / np.maximum(count_D, 1))
    # Clients whose type is not known have nothing in common: index 0 is no type.
    typed_W = (device_W > 0) & (count_D[device_W] > 0)
    mean_W = np.where(typed_W, mean_D[device_W], log_M.mean())
    variance_W = np.where(typed_W, variance_D[device_W], fleet * (1 + 1 / len(log_M)))
    return mean_W, np.sqrt(variance_W), np.where(typed_W, Source.DEVICE, Source.FLEET)


def hedge(speed_W: Array, deviation_W: Array, unseen_W: Mask) -> Array:
    """Return how many times as slow as in the mean to take the unseen clients of a round, ``[W]``; 1 for the others.

    Of many draws the slowest decides when the round ends. A smaller batch for all unseen clients makes it earlier, and
    that of the others, who take over the samples, later. Taken at their quantile ``z``, the expected log time of the
    round is least where the chance that some unseen client ends after the others, ``1 - Phi(z) ** count``, is the
    unseen clients' share of the samples: a little more caution gains by the one what it costs by the other.

    Examples
    --------
    Two clients of ten are unseen, then all of them, which leaves nobody to take over:

    >>> speed, deviation = np.full(10, 100.0), np.full(10, 0.5)
    >>> hedge(speed, deviation, np.arange(10) < 2)[:3].round(2)
    array([2.3, 2.3, 1. ])
    >>> hedge(speed, deviation, np.ones(10, dtype=bool))[:3]
    array([1., 1., 1.])
    """
    from scipy.special import ndtr

    hedge_W = np.ones(len(speed_W))
    deviation_W = np.where(unseen_W & np.isfinite(deviation_W), deviation_W, 0.0)
    if not deviation_W.any() or unseen_W.all():
        return hedge_W
    taken_Z = (speed_W[unseen_W] * np.exp(-QUANTILES[:, None] * deviation_W[unseen_W])).sum(axis=1)
    share_Z = taken_Z / (taken_Z + speed_W[~unseen_W].sum())
    late_Z = 1.0 - ndtr(QUANTILES) ** int(unseen_W.sum())
    z = QUANTILES[int(np.argmax(late_Z <= share_Z))]
    return np.asarray(np.exp(z * deviation_W))
