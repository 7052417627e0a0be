"""Recorded jobs to evaluate on, by name."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.datasets import Trace


def by_name(traces: Iterable[Trace] | Trace) -> dict[str, Trace]:
    """Return the traces by name; refuse two traces of one name, which tables would merge.

    Raises
    ------
    TypeError
        If one is not a trace.
    ValueError
        If two traces have the same name.

    Examples
    --------
    >>> list(by_name([Trace([[8]], [[1]], meta={"job": "digits"}), Trace([[8]], [[1]])]))
    ['digits', 'trace']
    """
    jobs: dict[str, Trace] = {}
    for trace in [traces] if isinstance(traces, Trace) else traces:
        require_trace(trace)
        if trace.name in jobs:
            raise ValueError(f"traces must have different names, got {trace.name!r} twice: set meta['job']")
        jobs[trace.name] = trace
    return jobs


def require_trace(trace: object) -> None:
    """Raise an error unless this is a trace in memory."""
    if not isinstance(trace, Trace):
        raise TypeError(
            f"a recorded job must be a Trace, got an object of {type(trace).__name__}: "
            "paceline.datasets.read_traces reads a file, and Trace.from_frame makes one of a frame"
        )


def require_warmup(warmup: int, trace: Trace) -> None:
    """Raise an error unless the warm-up leaves an iteration of the trace."""
    if not 0 <= warmup < len(trace):
        raise ValueError(
            f"warmup must be at least 0 and below the {len(trace)} iterations of trace {trace.name!r}, got {warmup}"
        )
