"""Which drivers a rank samples for its predictor: factors that drive a worker's speed, such as competing tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.predictors import Predictor
from paceline.recording.drivers import Driver, default_drivers

logger = logging.getLogger(__name__)


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
