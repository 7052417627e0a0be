"""Name the options, or the format, with which a file could be read, from the names of its columns or keys."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from paceline.datasets.columns import TIMES
from paceline.datasets.readers.csv_rows import delimiter_of, header_of

WORKER = {"worker", "rank", "node", "host", "hostname", "gpu", "device", "client", "machine", "instance", "pod"}
ITERATION = {"iteration", "iter", "step", "round"}
SAMPLES = {"samples", "batch", "tokens", "examples", "images"}
SPANS = {"time", "duration", "latency", "elapsed", "seconds"}


RATE = re.compile(
    r"(samples?|tokens?|examples?|images?|imgs?|its?|iters?|steps?)_?(/|per)_?s(ec(ond)?)?|throughput|speed"
)

STEP_TIME = {"step", "iter", "iteration", "batch", "compute", "busy", "train", "training", "own", "work"}
"""Words of a column that holds the time of a whole iteration."""


def advice(names: Sequence[str]) -> str:
    """Return the end of an error: the options that read a table with these columns; empty if none is known.

    >>> advice(["step", "rank", "duration_ms", "loss"])
    '; its columns suggest --with worker=rank --with iteration=step --with seconds=duration_ms --with unit=ms --with
    samples=1 (samples=1 counts iterations: give the batch size if you know it)'
    >>> advice(["a", "b"])
    ''
    """
    options = suggested(names)
    if not options:
        return ""
    counted = " (samples=1 counts iterations: give the batch size if you know it)"
    chosen = options.get("seconds")
    others = [name for name in compute_times(names) if name != chosen] if chosen else []
    also = (
        f"; other columns of times are {others}: name the one of a rank's own time, without waiting" if others else ""
    )
    return f"; its columns suggest {as_options(options)}{counted * (options.get('samples') == '1')}{also}"


def as_options(options: Mapping[str, str]) -> str:
    """Return options as a command line takes them.

    >>> as_options({"worker": "rank", "seconds": "step time"})
    "--with worker=rank --with 'seconds=step time'"
    """
    return " ".join(f"--with {shlex.quote(f'{name}={value}')}" for name, value in options.items())


def unambiguous(names: Sequence[str]) -> dict[str, str]:
    """Return the options of a table of which each column can mean one thing only; empty for any other table.

    Its workers, its iterations and the time of an iteration each have exactly one column; no other column holds times
    of a rank's own.

    >>> unambiguous(["step", "rank", "step_time_ms", "loss"])
    {'worker': 'rank', 'iteration': 'step', 'seconds': 'step_time_ms', 'unit': 'ms', 'samples': '1'}
    >>> unambiguous(["step", "rank", "wait_time_ms", "step_time_ms"])["seconds"]
    'step_time_ms'
    >>> [unambiguous(["step", "rank", *more]) for more in (["duration"], ["step_time", "iter_time"], ["eval_time"])]
    [{}, {}, {}]
    """
    options = suggested(names)
    times = compute_times(names)
    one_of_each = all(sum(_is(name, meant) for name in names) == 1 for meant in (WORKER, ITERATION))
    clear = one_of_each and len(times) == 1 and bool(STEP_TIME & set(_words(times[0])))
    samples = sum(_is(name, SAMPLES) for name in names) <= 1
    return options if clear and samples and {"worker", "seconds"} <= options.keys() else {}


def compute_times(names: Sequence[str]) -> list[str]:
    """Return the columns that may hold a rank's own time of an iteration, whole iterations first.

    >>> compute_times(["data_time", "duration_ms", "step_time", "elapsed_time", "eval_seconds", "forward_ms"])
    ['step_time', 'duration_ms']
    """
    # Times that are no rank's own time of an iteration: waiting, communication, loading, evaluation, cumulative times,
    # parts of an iteration, and the time on the wall, which is the same on all ranks.
    others = {
        *("wait", "waiting", "waited", "idle", "stall", "stalled", "queue", "blocked"),
        *("barrier", "sync", "synchronization"),
        *("comm", "communication", "nccl", "allreduce", "reduce", "gather", "allgather", "broadcast", "send", "recv"),
        *("data", "dataloader", "dataloading", "dataload", "load", "loader", "loading", "input", "fetch", "io", "read"),
        *("eval", "evaluation", "val", "valid", "validation", "test", "infer", "inference"),
        *("save", "checkpoint", "ckpt", "checkpointing", "log", "logging", "compile", "init", "startup", "warmup"),
        *("total", "cumulative", "cum", "elapsed", "since", "remaining", "left", "eta", "uptime", "runtime", "epoch"),
        *("forward", "fwd", "backward", "bwd", "optimizer", "optim", "opt", "loss", "h2d"),
        *("wall", "walltime", "real", "user", "sys"),
    }
    times = [name for name in names if span_unit(name) is not None and not others & set(_words(name))]
    return sorted(dict.fromkeys(times), key=lambda name: not STEP_TIME & set(_words(name)))


def suggested(names: Sequence[str]) -> dict[str, str]:
    """Return the options that read a table with these columns, by the words in their names; empty if these say nothing.

    >>> suggested(["timestamp", "host", "tokens_per_sec"])
    {'worker': 'host', 'start': 'timestamp', 'period': '60', 'rate': 'tokens_per_sec'}
    >>> suggested(["step", "rank0", "rank1"])
    {'iteration': 'step', 'values': 'seconds', 'samples': '1'}
    >>> suggested(["step", "rank", "wait_time_ms", "step_time_ms"])["seconds"]
    'step_time_ms'
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
    start = take(lambda name: _is(name, {"timestamp", "time", "datetime", "date", "ts", "start"}))
    times = [] if rate else compute_times(left)
    span = times[0] if times else None
    left = [name for name in left if name != span]
    if not (rate or span) and start and not iteration and _is(start, {"time"}):
        return {}  # a lone `time` may be a moment or a duration
    worker = take(lambda name: _is(name, WORKER))
    samples = None if rate else take(lambda name: _is(name, SAMPLES))
    options: dict[str, str | None] = {"worker": worker, "iteration": iteration}
    if not iteration and start:
        # suggest minutes where rows have only a time
        options |= {"start": start, "period": "60"}
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
    filling = {"id", "global", "local", "idx", "index", "number", "num", "n", "size", "name", "start", "event", "wall"}
    return any(word in meant for word in words) and all(word in meant | filling for word in words)


def span_unit(name: str) -> str | None:
    """Return the unit of a column of durations, ``s`` if it names none; ``None`` for any other column.

    >>> span_unit("step_time_ms"), span_unit("duration"), span_unit("timestamp"), span_unit("iteration seconds")
    ('ms', 's', None, 's')
    """
    words = _words(name)
    if not words or "per" in words:
        return None
    clear = len(words[-1]) > 1 and words[-1] != "min"  # `loss_min` is no time
    if words[-1] in TIMES and (clear or (SPANS | STEP_TIME) & set(words[:-1])):
        return "s" if TIMES[words[-1]] == 1.0 else words[-1]
    return "s" if words[-1] in SPANS and name.lower() != "time" else None


def _is_one_worker(name: str) -> bool:
    r"""Return whether a column is named after one worker: ``rank0``, ``gpu 1``, ``7``."""
    return re.fullmatch(rf"({'|'.join(sorted(WORKER))})?s?[ _:.-]?\d+", name.strip().lower()) is not None


def names_in(text: str) -> list[str]:
    """Return the keys of JSON, or the names in the first line of a table, whatever separates them.

    >>> names_in('[{"jobid": "a", "attempts": []}]'), names_in("# hostname;interval;timestamp")
    (['jobid', 'attempts'], ['hostname', 'interval', 'timestamp'])
    """
    if text.lstrip()[:1] in ("{", "["):
        return list(dict.fromkeys(map(_unquoted, re.findall(r'("(?:[^"\\]|\\.){1,60}")\s*:', text))))
    first = text.lstrip("# ")
    return header_of(first, delimiter_of(first))


def _unquoted(key: str) -> str:
    try:
        return str(json.loads(key))
    except ValueError:
        return key.strip('"')
