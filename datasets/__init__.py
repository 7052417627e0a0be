"""Traces: the one table, recorded ones, and the recorder.

Jobs that ship with the library are in :mod:`paceline.datasets.recorded`; recording more of them is
:mod:`paceline.datasets.collect`. Traces that others recorded are read by :mod:`paceline.datasets.readers`, and looked
at by :mod:`paceline.datasets.health`.
"""

from paceline.datasets.control_group import ControlGroup
from paceline.datasets.drivers import Driver, default_drivers
from paceline.datasets.frame import from_frame, to_frame
from paceline.datasets.parquet import load, save
from paceline.datasets.profiles import read_profiles
from paceline.datasets.readers import iter_traces, read_traces
from paceline.datasets.recorder import Recorder
from paceline.datasets.records import merge, phase_table
from paceline.datasets.remote import fetch
from paceline.datasets.synthetic import synthetic_fleet
from paceline.datasets.trace import Trace
from paceline.datasets.usage_speed import speed_from_usage

__all__ = [
    "ControlGroup",
    "Driver",
    "Recorder",
    "Trace",
    "default_drivers",
    "fetch",
    "from_frame",
    "iter_traces",
    "load",
    "merge",
    "phase_table",
    "read_profiles",
    "read_traces",
    "save",
    "speed_from_usage",
    "synthetic_fleet",
    "to_frame",
]
