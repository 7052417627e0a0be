"""Readers of traces that others recorded: every format by its name, files recognised where they are unambiguous.

One file of this folder reads one family of formats. A reader yields :class:`~paceline.datasets.Trace` one after the
other, so that a file larger than memory can be read; what it leaves out it counts in the trace's ``meta``.
"""

from paceline.datasets.readers.registry import (
    FORMATS,
    TABLES,
    Format,
    iter_traces,
    read_table,
    read_traces,
    recognise,
)

__all__ = ["FORMATS", "TABLES", "Format", "iter_traces", "read_table", "read_traces", "recognise"]
