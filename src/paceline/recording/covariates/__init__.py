"""Covariates of a worker's speed, such as its competitors, sampled at every boundary.

A covariate is a small named object with one job. To add one, write a class with a ``name``, a ``unit`` and ``sample``:

    class Temperature:
        '''Temperature of the processor.'''
        name, unit = "temperature", "degrees Celsius"

        def __init__(self) -> None:
            self._file = File("/sys/class/thermal/thermal_zone0/temp")

        def sample(self) -> float:
            return self._file.number() / 1000
"""

from paceline.recording.covariates.covariate import Covariate
from paceline.recording.covariates.linux import all_covariates, default_covariates

__all__ = ["Covariate", "all_covariates", "default_covariates"]
