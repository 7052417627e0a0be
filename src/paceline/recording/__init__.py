"""Record a run: the recorder of a worker's iterations, clocks, covariates, run records and the sinks that take them.

``covariates/`` samples what drives a worker's speed and ``torch/`` times the steps of a PyTorch loop. Adapters import
their library only when they are used.
"""

from paceline.recording.async_run import AsyncRun, AsyncRunReader, is_asynchronous, read_async_run
from paceline.recording.boards import Logging, TensorBoard
from paceline.recording.control_group import ControlGroup
from paceline.recording.covariates import Covariate, all_covariates, default_covariates
from paceline.recording.huggingface_callback import trainer_callback
from paceline.recording.iteration import Iteration
from paceline.recording.json_lines import JsonLines
from paceline.recording.lightning_callback import lightning_callback
from paceline.recording.merging import merge, phase_table
from paceline.recording.prometheus import Prometheus
from paceline.recording.reader import RunReader, newest, read_run
from paceline.recording.recorder import Recorder
from paceline.recording.round import Round
from paceline.recording.run import Run
from paceline.recording.sink import Sink, summary
from paceline.recording.targets import Target, round_sinks, sinks
from paceline.recording.torch import Watch, watch

__all__ = [
    "AsyncRun",
    "AsyncRunReader",
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
    "is_asynchronous",
    "lightning_callback",
    "merge",
    "newest",
    "phase_table",
    "read_async_run",
    "read_run",
    "round_sinks",
    "sinks",
    "summary",
    "trainer_callback",
    "watch",
]
