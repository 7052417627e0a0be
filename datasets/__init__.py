"""Traces: the one table, the recorded jobs, and readers for traces recorded by others.

Jobs that come with the library are in :mod:`paceline.datasets.recorded`, readers of public formats in
:mod:`paceline.datasets.readers`. :mod:`paceline.recording` records new traces.
"""

from paceline.datasets.profiles import read_profiles
from paceline.datasets.readers import iter_traces, read_traces
from paceline.datasets.synthetic import synthetic_fleet
from paceline.datasets.trace import Trace
from paceline.datasets.usage import speed_from_usage

__all__ = [
    "Trace",
    "iter_traces",
    "read_profiles",
    "read_traces",
    "speed_from_usage",
    "synthetic_fleet",
]
