"""Watch a run: write what each iteration measured, forecast and decided to a file, a log or a dashboard."""

from paceline.coordinator.metrics.boards import Logging, TensorBoard
from paceline.coordinator.metrics.json_lines import JsonLines
from paceline.coordinator.metrics.prometheus import Prometheus
from paceline.coordinator.metrics.reader import RunReader, newest, read_run
from paceline.coordinator.metrics.run import Run
from paceline.coordinator.metrics.sink import Sink, summary
from paceline.coordinator.metrics.targets import Target, sinks

__all__ = [
    "JsonLines",
    "Logging",
    "Prometheus",
    "Run",
    "RunReader",
    "Sink",
    "Target",
    "TensorBoard",
    "newest",
    "read_run",
    "sinks",
    "summary",
]
