"""A run as lines of JSON: one per iteration, after a header that explains them. Axis: W workers."""

from __future__ import annotations

import atexit
import json
import math
import os
import secrets
import socket
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paceline._files import Lines
from paceline._version import __version__
from paceline.recording.growing_file import LONGEST, parsed
from paceline.recording.records import Iteration, Round
from paceline.recording.sink import Sink, logger, summary


def known(value: float) -> float | None:
    """Return a number for JSON: null if it is not finite.

    >>> known(0.25), known(float("nan"))
    (0.25, None)
    """
    return round(float(value), 7) if math.isfinite(value) else None


def all_known(values: ArrayLike) -> list[float | None]:
    """Return numbers for JSON, ``[W]``."""
    return [known(value) for value in np.asarray(values, dtype=np.float64).tolist()]


ROUND_SCHEMA = 1
"""The version of the format; a reader refuses later versions."""

OF_WORKERS = ("sizes", "pushes", "staleness", "expected", "done", "wasted", "waited")
OF_FLEET = (
    "index",
    "time",
    "version",
    "applied",
    "dropped",
    "abandoned",
    "refused",
    "wasted_share",
    "forecast",
    "actual",
    "covered",
    "largest",
)


def header_of_rounds(record: Round) -> dict[str, Any]:
    """Return the line that comes before the rounds of a fleet."""
    return {
        "paceline_async_run": ROUND_SCHEMA,
        "version": __version__,
        "workers": list(record.workers),
        "scheme": record.scheme,
        "bound": record.bound,
        "batch": record.batch,
        "units": {
            "time": "seconds since the epoch",
            "waited": "seconds",
            "staleness, expected, forecast, actual, largest, bound": "versions",
            "sizes, done, wasted, applied, dropped, abandoned, refused, batch": "samples",
            "wasted_share, covered": "share",
        },
    }


def about_round(record: Round) -> dict[str, Any]:
    """Return the line of a round."""
    return {
        **{name: known(getattr(record, name)) for name in OF_FLEET},
        "time": round(record.time, 3),
        **{name: all_known(getattr(record, name)) for name in OF_WORKERS},
        "stragglers": list(record.stragglers),
        "acted": record.acted,
        "why": record.why,
    }


SCHEMA = 1
"""The version of the format; a reader refuses later versions."""


class JsonLines(Sink):
    """Appends a line to a file at each iteration, and hands it to the operating system at once.

    However the process ends, even by ``kill -9``, the file stays readable up to the last line, which may be cut short.
    The first line names the schema, the workers and the global batch. Another such line follows whenever the fleet
    changes or a run is resumed into the same file. Iterations that do not fit on a full disk are lost, and counted in
    the next line that fits (``lost_before``). A process that ends without an error, and :meth:`close`, write a last
    line that says so (``ended``): without it a watcher takes silence for a fault. One job at a time writes to a file:
    the sink of another one logs which process does, and writes nothing. Read it with :func:`read_run`,
    ``paceline watch`` or ``paceline report``.

    Parameters
    ----------
    path
        The file, preferably with the suffix ``.jsonl``; made, with its parent folders, when the first iteration is
        written.

    Attributes
    ----------
    lost
        Number of iterations that could not be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.recording import read_run
    >>> from paceline.predictors import EWMA, Report
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512)
    >>> used, report = balancer.plan, Report(samples=[256, 256], seconds=[0.25, 0.5])
    >>> iteration = Iteration.of(used, report, balancer.step(report))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/run.jsonl")
    ...     sink(iteration)
    ...     sink.close()
    ...     print(read_run(f"{folder}/run.jsonl").seconds)
    [[0.25 0.5 ]]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lost = 0
        self._lines: Lines | None = None
        self._lost_since = 0
        self._fleet: tuple[tuple[str, ...], int] | None = None
        self._run = secrets.token_hex(4)  # by it a reader knows which header explains a line
        self._started = datetime.now().astimezone().isoformat(" ", "seconds")

    def write(self, iteration: Iteration) -> None:
        """Append the iteration, after a header line if the fleet is a new one."""
        self._append((iteration.workers, int(iteration.plan.sizes.sum())), _header(iteration), _about(iteration))

    def write_round(self, record: Round) -> None:
        """Append the round, after a header line if the fleet is a new one."""
        self._append((record.workers, record.batch), header_of_rounds(record), about_round(record))

    def _append(self, fleet: tuple[tuple[str, ...], int], header: dict[str, Any], about: dict[str, Any]) -> None:
        if self._lines is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lines, self._process = self._opened(), os.getpid()
            atexit.register(self._end)
        if fleet != self._fleet and self._line({**header, "run": self._run, "process": self._about_process()}):
            self._fleet = fleet
        # Without its header a record would be read as one of the fleet before: it is lost with it.
        lost = {"lost_before": self._lost_since} if self._lost_since else {}
        if fleet == self._fleet and self._line(about | lost | {"run": self._run}):
            self._lost_since = 0
        else:
            self.lost += 1
            self._lost_since += 1

    def _opened(self) -> Lines:
        try:
            return Lines(self.path, logger, alone=True)
        except BlockingIOError:
            writer = _writer_of(self.path)
            if (writer.get("pid"), writer.get("host")) == (os.getpid(), socket.gethostname()):
                return Lines(self.path, logger)  # another sink of this process: its job goes on
            raise ValueError(
                f"{self.path} is written by process {writer.get('pid', 'of another job')} on "
                f"{writer.get('host', 'a machine of yours')}, which started {writer.get('started', 'before')}; give "
                "each job a file of its own"
            ) from None

    def _about_process(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "started": self._started}

    def close(self) -> None:
        """Write that the run has ended, and close the file; a further iteration opens it again."""
        if self._lines is not None:
            self._line({"ended": round(time.time(), 3)})
            self._lines.close()
            atexit.unregister(self._end)
        self._lines = self._fleet = None

    def _end(self) -> None:
        # A run that an error ended did not end well, and a forked process did not end the run.
        if getattr(sys, "last_type", None) is None and os.getpid() == self._process:
            self.close()

    def _line(self, content: dict[str, Any]) -> bool:
        return self._lines is not None and self._lines.append(json.dumps(content, allow_nan=False))


def _writer_of(path: Path) -> dict[str, Any]:
    """Return what the newest header of a file says of the process that writes it; nothing where none says so."""
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        for text in iter(partial(file.readline, LONGEST), b""):
            if b'"process"' in text and isinstance(process := parsed(text).get("process"), dict):
                found = process
    return found


def _header(iteration: Iteration) -> dict[str, Any]:
    return {
        "paceline_run": SCHEMA,
        "version": __version__,
        "workers": list(iteration.workers),
        "global_batch": int(iteration.plan.sizes.sum()),
        "units": {
            "time": "seconds since the epoch",
            "sizes": "samples",
            "work": "average samples",
            "all others": "seconds, or shares",
        },
    }


def _about(iteration: Iteration) -> dict[str, Any]:
    numbers, plan = summary(iteration), iteration.plan
    return {
        "index": iteration.index,
        "time": round(iteration.time, 3),
        "sizes": iteration.sizes.tolist(),
        "seconds": all_known(iteration.seconds),
        "forecast_seconds": all_known(iteration.forecast_seconds),
        "comm_seconds": all_known(iteration.comm_seconds),
        "wall_seconds": known(numbers["wall_seconds"]),
        "equal_seconds": known(numbers["equal_seconds"]),
        "overhead_seconds": known(numbers["overhead_seconds"]),
        "agreed": bool(iteration.agreed),
        **({} if iteration.work is None else {"work": all_known(iteration.work)}),
        "planned": plan.sizes.tolist(),
        "gain": known(plan.gain),
        "acted": bool(plan.acted),
        "why": plan.why,
    }
