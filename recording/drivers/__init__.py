"""Driving factors of a worker's speed (not hardware drivers), such as its competitors, sampled at every boundary.

A driver is a small named object with one job. To add one, write a class with a ``name``, a ``unit`` and ``sample``:

    class Temperature:
        '''Temperature of the processor.'''
        name, unit = "temperature", "degrees Celsius"

        def __init__(self) -> None:
            self._file = File("/sys/class/thermal/thermal_zone0/temp")

        def sample(self) -> float:
            return self._file.number() / 1000
"""

from paceline.recording.drivers.driver import Driver
from paceline.recording.drivers.linux import all_drivers, default_drivers

__all__ = ["Driver", "all_drivers", "default_drivers"]
