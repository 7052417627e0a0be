"""Traces: the one table, recorded ones, and the recorder.

Jobs that ship with the library are in :mod:`paceline.datasets.recorded`; recording more of them is
:mod:`paceline.datasets.collect`.
"""

from paceline.datasets.control_group import ControlGroup
from paceline.datasets.drivers import Driver, default_drivers
from paceline.datasets.frame import from_frame, to_frame
from paceline.datasets.parquet import load, save
from paceline.datasets.readers import iter_traces, read_traces
from paceline.datasets.recorder import Recorder
from paceline.datasets.records import merge, phase_table
from paceline.datasets.trace import Trace

__all__ = [
    "ControlGroup",
    "Driver",
    "Recorder",
    "Trace",
    "default_drivers",
    "from_frame",
    "iter_traces",
    "load",
    "merge",
    "read_traces",
    "phase_table",
    "save",
    "to_frame",
]
