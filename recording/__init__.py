"""Instruments: a recorder of a worker's iterations, stopwatches for training loops, and samplers of covariates.

``covariates/`` samples the factors that drive a worker's speed, ``torch/`` times the steps of a PyTorch loop, and one
file each adapts Lightning and Hugging Face. An adapter imports its library only when it is used.
"""

from paceline.recording.control_group import ControlGroup
from paceline.recording.covariates import Covariate, all_covariates, default_covariates
from paceline.recording.huggingface_callback import trainer_callback
from paceline.recording.lightning_callback import lightning_callback
from paceline.recording.merging import merge, phase_table
from paceline.recording.recorder import Recorder
from paceline.recording.torch import Watch, watch

__all__ = [
    "ControlGroup",
    "Covariate",
    "Recorder",
    "Watch",
    "all_covariates",
    "default_covariates",
    "lightning_callback",
    "merge",
    "phase_table",
    "trainer_callback",
    "watch",
]
