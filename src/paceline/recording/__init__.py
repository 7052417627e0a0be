"""Record a run: the recorder of a worker's iterations, clocks, covariates, run records and the sinks that take them.

``covariates.py`` samples what drives a worker's speed and ``torch/`` times the steps of a PyTorch loop. Adapters import
their library only when they are used.
"""

from paceline.recording.control_group import ControlGroup
from paceline.recording.covariates import Covariate, all_covariates, default_covariates, nvml_covariates
from paceline.recording.merging import merge, phase_table
from paceline.recording.recorder import Recorder
from paceline.recording.records import Iteration, Round
from paceline.recording.run_reader import (
    AsyncRun,
    Run,
    RunReader,
    newest_run_file,
    read_async_run,
    read_run,
)
from paceline.recording.sink import JsonLines, Logging, Prometheus, Sink, Target, TensorBoard, sinks, summary
from paceline.recording.torch import Watch, watch

__all__ = [
    "AsyncRun",
    "ControlGroup",
    "Covariate",
    "Iteration",
    "JsonLines",
    "Logging",
    "Prometheus",
    "Recorder",
    "Round",
    "Run",
    "RunReader",
    "Sink",
    "Target",
    "TensorBoard",
    "Watch",
    "all_covariates",
    "default_covariates",
    "merge",
    "newest_run_file",
    "nvml_covariates",
    "phase_table",
    "read_async_run",
    "read_run",
    "sinks",
    "summary",
    "watch",
]
