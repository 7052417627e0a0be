"""The record in which server and client speak to each other: plain numbers by name, nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORD_NAME = "paceline"
"""The name of our record in a message's content, beside the user's own."""

BATCH_KEY, STEPS_KEY = "batch-size", "local-steps"
"""Names of both in the record, and in the user's configuration."""


@dataclass(frozen=True)
class ClientMeasurement:
    """Measurements of a client, and its statements about itself; NaN, or empty, for a missing or senseless one.

    Samples and seconds are of all its local steps; data and memory, its largest batch, are in samples.
    """

    samples: float = math.nan
    seconds: float = math.nan
    data: float = math.nan
    memory: float = math.nan
    device: str = ""


def parse_measurement(record: Any) -> ClientMeasurement:
    """Return the measurements in a client's record, whatever it holds.

    >>> parse_measurement({"samples": 320.0, "seconds": "soon", "device": "pixel"})
    ClientMeasurement(samples=320.0, seconds=nan, data=nan, memory=nan, device='pixel')
    >>> parse_measurement(None)
    ClientMeasurement(samples=nan, seconds=nan, data=nan, memory=nan, device='')
    """
    if not isinstance(record, Mapping):
        return ClientMeasurement()
    numbers = {name: _parse_number(record.get(name)) for name in ("samples", "seconds", "data", "memory")}
    for name in ("data", "memory"):
        if not numbers[name] >= 1:
            numbers[name] = math.nan
    device = record.get("device")
    # the device type comes from a client
    return ClientMeasurement(**numbers, device=device[:100] if isinstance(device, str) else "")


def parse_positive_int(record: Any, name: str) -> int:
    """Return a positive whole number from a record; 0 where it holds none.

    >>> parse_positive_int({"batch-size": 32}, "batch-size"), parse_positive_int({"batch-size": 2.5}, "batch-size")
    (32, 0)
    """
    number = _parse_number(record.get(name)) if isinstance(record, Mapping) else math.nan
    return int(number) if number >= 1 and number.is_integer() else 0


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if abs(value) < 1e300 else math.nan
