"""The plan of one iteration: who processes how many samples, and why. Axis: W workers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline.predictors import Curves, Forecast


@dataclass(frozen=True, eq=False)
class Plan:
    """The batch sizes of an iteration to come, with the forecast behind them and the reason.

    Parameters
    ----------
    workers
        The fleet, in the order of every array.
    sizes
        Samples of each worker, ``[W]`` int64; they sum to the global batch.
    forecast
        The forecast from which the sizes were chosen.
    seconds
        Time each worker is expected to take for them, ``[W]``, in seconds; 0 for a worker without samples.
    gain
        Share of the iteration's time that these sizes are expected to save, against keeping those of the plan
        before; 0 where they were kept.
    acted
        Whether a size differs from the plan before.
    why
        What was done and why, in a sentence.
    iteration
        How many iterations had been reported when it was made.

    Examples
    --------
    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.predictors import EWMA
    >>> plan = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512).plan
    >>> plan.sizes, plan.weights
    (array([256, 256]), array([0.5, 0.5]))
    >>> print(plan.why)
    Equal batches: no iteration has been reported yet.
    """

    workers: tuple[str, ...]
    sizes: Sizes
    forecast: Forecast
    seconds: Array
    gain: float
    acted: bool
    why: str
    iteration: int = 0

    @property
    def makespan(self) -> float:
        """Seconds until the last worker is expected to be done."""
        return float(self.seconds.max())

    @property
    def weights(self) -> Array:
        """Each worker's weight in the mean gradient, ``[W]``: its share of the samples."""
        share: Array = self.sizes / self.sizes.sum()
        return share

    @property
    def checksum(self) -> int:
        """A hash of workers, sizes and iteration, for ranks to compare: 52 bits, so that a float64 carries it exactly.

        It is the same on every rank and platform.

        >>> from paceline.coordinator import LoadBalancer
        >>> from paceline.predictors import EWMA
        >>> LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512).plan.checksum
        1116388711042280
        """
        digest = hashlib.blake2b(json.dumps([self.iteration, *self.workers]).encode(), digest_size=8)
        digest.update(np.asarray(self.sizes, dtype="<i8").tobytes())
        return int.from_bytes(digest.digest(), "little") >> 12

    def token_weights(self, tokens: ArrayLike) -> Array:
        """Return each worker's weight in the mean gradient of a loss that is a mean over tokens, ``[W]``.

        Parameters
        ----------
        tokens
            Tokens that count in each worker's loss this iteration, ``[W]``.

        Raises
        ------
        ValueError
            If there is not one finite number, not negative, for each worker, or all are 0.

        Examples
        --------
        Equal batches of unequal sentences:

        >>> from paceline.coordinator import LoadBalancer
        >>> from paceline.predictors import EWMA
        >>> plan = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512).plan
        >>> plan.token_weights([3000, 1000])
        array([0.75, 0.25])
        """
        counts = np.asarray(tokens, dtype=np.float64)
        if counts.shape != self.sizes.shape:
            raise ValueError(
                f"tokens must hold one number for each of the {len(self.sizes)} workers, got the shape {counts.shape}"
            )
        if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.any()):
            raise ValueError(f"tokens must be finite, not negative and not all 0, got {counts.tolist()}")
        share: Array = counts / counts.sum()
        return share


def seconds_of(curves: Curves, sizes: Sizes | Array) -> Array:
    """Return the time each worker takes for its size, ``[W]``, in seconds; 0 for none; memory limits left out."""
    line = np.maximum(curves.floor, curves.intercept + curves.slope * sizes)
    return np.where(sizes > 0, line, 0.0)
