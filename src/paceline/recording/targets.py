"""Make sinks from text, as on a command line."""

from __future__ import annotations

from collections.abc import Callable

from paceline.recording.json_lines import JsonLines
from paceline.recording.records import Iteration, Round
from paceline.recording.sink import LOOPBACK, Logging, Prometheus, Sink, TensorBoard

Target = str | Callable[[Iteration], None]
"""The name of a sink, or a sink."""


def sinks(*targets: Target) -> list[Callable[[Iteration], None]]:
    """Return the sinks for these names; a sink, or any function of an iteration, is returned unchanged.

    Parameters
    ----------
    targets
        ``"log"``, ``"tensorboard:FOLDER"``, ``"prometheus:PORT"``, ``"prometheus:HOST:PORT"``, or the path of a
        JSON-lines file, ``"run.jsonl"``. Prometheus answers this machine only, unless the host says otherwise.

    Raises
    ------
    ValueError
        If a text names no sink.
    ImportError
        If a sink's library is missing.

    Examples
    --------
    >>> [type(sink).__name__ for sink in sinks("log", "run.jsonl")]
    ['Logging', 'JsonLines']
    >>> sinks("run.csv")
    Traceback (most recent call last):
    ValueError: metrics must be "log", "tensorboard:FOLDER", "prometheus:PORT", "prometheus:HOST:PORT" or a file that
    ends in .jsonl, got 'run.csv'
    """
    return [_named(target) if isinstance(target, str) else target for target in targets]


def round_sinks(*targets: str | Callable[[Round], None]) -> list[Callable[[Round], None]]:
    """Return the sinks for these names, for asynchronous training; the names are those of :func:`sinks`.

    >>> [type(sink).__name__ for sink in round_sinks("log", "run.jsonl")]
    ['Logging', 'JsonLines']
    """
    return [_named(target) if isinstance(target, str) else target for target in targets]


def _named(target: str) -> Sink:
    kind, _, argument = target.partition(":")
    if target == "log":
        return Logging()
    if kind == "tensorboard" and argument:
        return TensorBoard(argument)
    if kind == "prometheus" and (port := argument.rpartition(":")[2]).isdecimal():
        host = argument.removesuffix(port).removesuffix(":").strip("[]")  # an IPv6 address may stand in brackets
        return Prometheus(int(port), address=host or LOOPBACK)
    if target.endswith(".jsonl"):
        return JsonLines(target)
    raise ValueError(
        'metrics must be "log", "tensorboard:FOLDER", "prometheus:PORT", "prometheus:HOST:PORT" or a file that ends in '
        f".jsonl, got {target!r}"
    )
