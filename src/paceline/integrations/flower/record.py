"""The record in which server and client speak to each other: plain numbers by name, nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORD = "paceline"
"""The name of our record in a message's content, beside the user's own."""

BATCH, STEPS = "batch-size", "local-steps"
"""Names of both in the record, and in the user's configuration unless it says otherwise."""


@dataclass(frozen=True)
class Measured:
    """Measurements of a client, and its statements about itself; NaN for a missing or senseless one.

    Parameters
    ----------
    samples, seconds
        Samples and time of all its local steps.
    data, memory
        Its amount of data and its largest batch, in samples.
    device
        Its device type, empty if it gave none.
    """

    samples: float = math.nan
    seconds: float = math.nan
    data: float = math.nan
    memory: float = math.nan
    device: str = ""

    def about(self, name: str) -> float | str | None:
        """Return the client's statement about its ``data``, ``memory`` or ``devices``; ``None`` if it made none.

        >>> Measured(data=600.0).about("data"), Measured().about("data"), Measured().about("devices")
        (600.0, None, None)
        """
        if name == "devices":
            return self.device or None
        value = self.data if name == "data" else self.memory
        return None if math.isnan(value) else value


def measured_in(record: Any) -> Measured:
    """Return the measurements in a client's record, whatever it holds.

    >>> measured_in({"samples": 320.0, "seconds": "soon", "device": "pixel"})
    Measured(samples=320.0, seconds=nan, data=nan, memory=nan, device='pixel')
    >>> measured_in(None)
    Measured(samples=nan, seconds=nan, data=nan, memory=nan, device='')
    """
    if not isinstance(record, Mapping):
        return Measured()
    numbers = {name: _number(record.get(name)) for name in ("samples", "seconds", "data", "memory")}
    for name in ("data", "memory"):
        if not numbers[name] >= 1:
            numbers[name] = math.nan
    device = record.get("device")
    # the device type comes from a client
    return Measured(**numbers, device=device[:100] if isinstance(device, str) else "")


def integer_in(record: Any, name: str) -> int:
    """Return a positive whole number from a record; 0 where it holds none.

    >>> integer_in({"batch-size": 32}, "batch-size"), integer_in({"batch-size": 2.5}, "batch-size")
    (32, 0)
    """
    number = _number(record.get(name)) if isinstance(record, Mapping) else math.nan
    return int(number) if number >= 1 and number.is_integer() else 0


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if abs(value) < 1e300 else math.nan
