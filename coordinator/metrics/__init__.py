"""Watch a run: write what each iteration measured, forecast and decided to a file, a log or a dashboard."""

from paceline.coordinator.metrics.async_run import AsyncRun, AsyncRunReader, is_asynchronous, read_async_run
from paceline.coordinator.metrics.boards import Logging, TensorBoard
from paceline.coordinator.metrics.json_lines import JsonLines
from paceline.coordinator.metrics.prometheus import Prometheus
from paceline.coordinator.metrics.reader import RunReader, newest, read_run
from paceline.coordinator.metrics.run import Run
from paceline.coordinator.metrics.sink import Sink, summary
from paceline.coordinator.metrics.targets import Target, round_sinks, sinks

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
