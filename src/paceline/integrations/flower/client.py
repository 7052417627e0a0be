"""The client's side on Flower: measure the training, and say so in the reply, in a record of plain numbers by name."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._require import require

RECORD_NAME = "paceline"
"""The name of our record in a message's content, beside the user's own."""

BATCH_KEY, STEPS_KEY = "batch-size", "local-steps"
"""Names of both in the record, and in the user's configuration."""

CLOCK = time.perf_counter


class ClientStopwatch:
    """Measures one client's training; `stopwatch` starts it.

    Batch size and local steps are those that the server asked for; 0 where it asked for none.
    """

    def __init__(self, batch_size: int, local_steps: int, data: float, memory: float, device: str) -> None:
        self.batch_size, self.local_steps = batch_size, local_steps
        self.data, self.memory, self.device = data, memory, device
        self._start_time = CLOCK()

    def stop(self, *, samples: int | None = None) -> Any:
        """Return the record to put into the reply's content, under any name of its own.

        Parameters
        ----------
        samples
            Samples processed since the start; unless given, those the server asked for, and no more in a step than the
            client has. A client that processes others, such as one that trains by epochs, must give them: else its
            speed would seem to grow with its batch.
        """
        require("flwr", needed_by="Stopwatch.stop", extra="flower")
        from flwr.app import ConfigRecord  # pyright: ignore[reportMissingImports]

        seconds = CLOCK() - self._start_time
        batch = min(self.batch_size, int(self.data)) if math.isfinite(self.data) else self.batch_size
        balanced = self.batch_size and self.local_steps
        assigned = batch * self.local_steps if balanced else math.nan
        known = {"samples": float(assigned if samples is None else samples), "data": self.data, "memory": self.memory}
        amounts = {name: value for name, value in known.items() if math.isfinite(value)}
        return ConfigRecord({"seconds": seconds, "device": self.device, **amounts})


def stopwatch(message: Any, *, data: float = math.nan, memory: float = math.nan, device: str = "") -> ClientStopwatch:
    """Start to measure a client's training: call it right before, and ``stop`` right after.

    Leave out what does not belong to the local steps, such as loading a model or evaluating.

    Parameters
    ----------
    message
        The message that asks for training.
    data
        Samples that the client holds: a batch is never larger, and its weight in the average is compared with it.
    memory
        The largest batch that fits into its memory, in samples.
    device
        Its device type, such as the phone's model: what a client that was never seen is forecast by.

    Examples
    --------
    In a function that Flower calls, ``content`` being what it replies::

        watch = stopwatch(message, data=len(dataset), device="pixel-7")
        train(model, batches_of(message.content["config"]["batch-size"]))
        content["paceline"] = watch.stop()
    """
    request = message.content.get(RECORD_NAME)
    batch, steps = parse_positive_int(request, BATCH_KEY), parse_positive_int(request, STEPS_KEY)
    return ClientStopwatch(batch, steps, float(data), float(memory), device)


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
