"""Name the options with which a table could be read, from the names of its columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from paceline.datasets.units import TIMES

WORKER = {"worker", "rank", "node", "host", "hostname", "gpu", "device", "client", "machine", "instance", "pod"}
ITERATION = {"iteration", "iter", "step", "round"}
START = {"timestamp", "time", "datetime", "date", "ts", "start"}
SAMPLES = {"samples", "batch", "tokens", "examples", "images"}
SPANS = {"time", "duration", "latency", "elapsed", "seconds"}
FILLING = {"id", "global", "local", "idx", "index", "number", "num", "n", "size", "name", "start", "event", "wall"}
"""Words that may stand beside the one that says what a column is."""

COUNTED = "samples?|tokens?|examples?|images?|imgs?|its?|iters?|steps?"
RATE = re.compile(rf"({COUNTED})_?(/|per)_?s(ec(ond)?)?|throughput|speed")

PERIOD = 60
"""Seconds of an iteration that are proposed where rows have a time alone."""


def advice(names: Sequence[str]) -> str:
    """Return the end of an error: the ``--with`` line that reads a table with these columns; empty if none is known.

    >>> advice(["step", "rank", "step_time_ms", "loss"])
    '; its columns suggest --with worker=rank iteration=step seconds=step_time_ms unit=ms samples=1 (samples=1 counts
    iterations: give the batch size if you know it)'
    """
    options = suggested(names)
    if not options:
        return ""
    line = " ".join(shlex.quote(f"{name}={value}") for name, value in options.items())
    counted = " (samples=1 counts iterations: give the batch size if you know it)"
    return f"; its columns suggest --with {line}{counted * (options.get('samples') == '1')}"


def suggested(names: Sequence[str]) -> dict[str, str]:
    """Return the options that read a table with these columns, by the words in their names; empty if these say nothing.

    >>> suggested(["timestamp", "host", "tokens_per_sec"])
    {'worker': 'host', 'start': 'timestamp', 'period': '60', 'rate': 'tokens_per_sec'}
    >>> suggested(["step", "rank0", "rank1"])
    {'iteration': 'step', 'values': 'seconds', 'samples': '1'}
    >>> suggested(["a", "b"])
    {}
    """
    left = list(dict.fromkeys(names))

    def take(role: Callable[[str], bool]) -> str | None:
        found = next((name for name in left if role(name)), None)
        if found is not None:
            left.remove(found)
        return found

    rate = take(lambda name: RATE.fullmatch(name.strip().lower().replace(" ", "_")) is not None)
    iteration = take(lambda name: _is(name, ITERATION))
    start = take(lambda name: _is(name, START))
    span = None if rate else take(lambda name: span_unit(name) is not None)
    if not (rate or span) and start and not iteration and _is(start, {"time"}):
        return {}  # a lone `time` may be a moment or a duration
    worker = take(lambda name: _is(name, WORKER))
    samples = None if rate else take(lambda name: _is(name, SAMPLES))
    options: dict[str, str | None] = {"worker": worker, "iteration": iteration}
    if not iteration and start:
        options |= {"start": start, "period": str(PERIOD)}
    if rate:
        options["rate"] = rate
    elif span:
        unit = span_unit(span)
        options |= {"seconds": span, "unit": None if unit == "s" else unit, "samples": samples or "1"}
    elif len(left) > 1 and all(map(_is_one_worker, left)) and not (worker or samples):
        options |= {"values": "seconds", "samples": "1"}
    else:
        return {}
    known = {name: value for name, value in options.items() if value is not None and name != value}
    return known if iteration or start or "values" in known else {}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]


def _is(name: str, meant: set[str]) -> bool:
    """Return whether a name has at least one word of ``meant``, and beside these only filling words."""
    words = _words(name)
    return any(word in meant for word in words) and all(word in meant | FILLING for word in words)


def span_unit(name: str) -> str | None:
    """Return the unit of a column of durations, ``s`` if it names none; ``None`` for any other column.

    >>> span_unit("step_time_ms"), span_unit("duration"), span_unit("timestamp"), span_unit("iteration seconds")
    ('ms', 's', None, 's')
    """
    words = _words(name)
    if not words:
        return None
    if words[-1] in TIMES and (len(words) == 1 or SPANS & set(words[:-1]) or words[-1] == "seconds"):
        return "s" if TIMES[words[-1]] == 1.0 else words[-1]
    return "s" if words[-1] in SPANS and name.lower() != "time" else None


def _is_one_worker(name: str) -> bool:
    r"""Return whether a column is named after one worker: ``rank0``, ``gpu 1``, ``7``."""
    return re.fullmatch(rf"({'|'.join(sorted(WORKER))})?s?[ _:.-]?\d+", name.strip().lower()) is not None
