"""Watch a run: write what each iteration measured, forecast and decided to a file, a log or a dashboard."""

from paceline.runs.async_run import AsyncRun, AsyncRunReader, is_asynchronous, read_async_run
from paceline.runs.boards import Logging, TensorBoard
from paceline.runs.json_lines import JsonLines
from paceline.runs.prometheus import Prometheus
from paceline.runs.reader import RunReader, newest, read_run
from paceline.runs.run import Run
from paceline.runs.sink import Sink, summary
from paceline.runs.targets import Target, round_sinks, sinks

__all__ = [
    "AsyncRun",
    "AsyncRunReader",
    "JsonLines",
    "Logging",
    "Prometheus",
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
