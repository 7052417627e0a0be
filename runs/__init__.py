"""Records of a run, the sinks that take them, and the reader of recorded runs."""

from paceline.runs.async_run import AsyncRun, AsyncRunReader, is_asynchronous, read_async_run
from paceline.runs.boards import Logging, TensorBoard
from paceline.runs.iteration import Iteration
from paceline.runs.json_lines import JsonLines
from paceline.runs.prometheus import Prometheus
from paceline.runs.reader import RunReader, newest, read_run
from paceline.runs.round import Round
from paceline.runs.run import Run
from paceline.runs.sink import Sink, summary
from paceline.runs.targets import Target, round_sinks, sinks

__all__ = [
    "AsyncRun",
    "AsyncRunReader",
    "Iteration",
    "JsonLines",
    "Logging",
    "Prometheus",
    "Round",
    "Run",
    "RunReader",
    "Sink",
    "Target",
    "TensorBoard",
    "is_asynchronous",
    "newest",
    "read_async_run",
    "read_run",
    "round_sinks",
    "sinks",
    "summary",
]
