"""Traces: the one table, recorded ones, and the recorder."""

from paceline.datasets.frame import from_frame, to_frame
from paceline.datasets.parquet import load, save
from paceline.datasets.trace import Trace

__all__ = ["Trace", "from_frame", "load", "save", "to_frame"]
