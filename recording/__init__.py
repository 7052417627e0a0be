"""Instruments: a recorder of what a worker does, stopwatches for training loops, and the driving factors of its speed.

``drivers/`` reads the factors, ``torch/`` times the steps of a PyTorch loop, and a file each adapts Lightning and
Hugging Face. Each adapter needs the library that it adapts to, and loads it when it is used.
"""

from paceline.recording.control_group import ControlGroup
from paceline.recording.drivers import Driver, all_drivers, default_drivers
from paceline.recording.huggingface import trainer_callback
from paceline.recording.lightning import lightning_callback
from paceline.recording.merging import merge, phase_table
from paceline.recording.recorder import Recorder
from paceline.recording.torch import Watch, watch

__all__ = [
    "ControlGroup",
    "Driver",
    "Recorder",
    "Watch",
    "all_drivers",
    "default_drivers",
    "lightning_callback",
    "merge",
    "phase_table",
    "trainer_callback",
    "watch",
]
