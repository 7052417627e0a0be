"""Which drivers a rank samples for its predictor: factors that drive a worker's speed, such as competing tasks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.predictors import Predictor
from paceline.recording.drivers import Driver, default_drivers

logger = logging.getLogger(__name__)


SAMPLING = 0.004
"""Largest share of the time that sampling may take: where it takes longer, a sample serves for several iterations.
Files of the kernel are read, at an iteration's end, when all others may be waiting for this rank."""


class Sampled:
    """The newest value of every driver.

    Parameters
    ----------
    drivers
        What is sampled.

    Attributes
    ----------
    values
        A number for each driver.
    """

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._drivers = tuple(drivers)
        self.values: list[float] = []
        self.next = 0.0 if self._drivers else math.inf
        """When to sample again, by ``time.perf_counter``."""

    def take(self) -> None:
        """Sample all drivers."""
        began = time.perf_counter()
        self.values = [driver.sample() for driver in self._drivers]
        ended = time.perf_counter()
        self.next = ended + (ended - began) / SAMPLING

    def close(self) -> None:
        """Let go of the drivers, each of which keeps a kernel file open."""
        self._drivers, self.next = (), math.inf


@dataclass(frozen=True)
class Unknown:
    """A driver that this machine cannot sample: always NaN, which predictors treat as unknown."""

    name: str
    unit: str = "not sampled"

    def sample(self) -> float:
        """Return NaN."""
        return float("nan")


def drivers_for(predictor: Predictor, drivers: Sequence[Driver] | None) -> list[Driver]:
    """Return the drivers to sample, in the order in which the predictor reads them.

    Raises
    ------
    ValueError
        If the predictor reads drivers but none of them can be sampled.
    """
    if not predictor.driver_names:
        return []
    known = {driver.name: driver for driver in (default_drivers() if drivers is None else drivers)}
    missing = [name for name in predictor.driver_names if name not in known]
    if len(missing) == len(predictor.driver_names):
        raise ValueError(
            f"the predictor reads the drivers {missing}, but only {list(known)} are sampled: give drivers=[...]"
        )
    if missing:
        logger.info("the predictor can read %s, which nothing samples here", missing)
    return [known.get(name, Unknown(name)) for name in predictor.driver_names]
