"""Readers of traces recorded by others: every format by its name; unambiguous files are recognized.

Each file of this folder reads one family of formats. A reader yields :class:`~paceline.datasets.Trace` one after the
other, so that files larger than memory can be read. The trace's ``meta`` counts the rows that it leaves out.
"""

from paceline.datasets.readers.reader_registry import (
    FORMATS,
    Format,
    detect_format,
    iter_traces,
    read_traces,
)

__all__ = ["FORMATS", "Format", "detect_format", "iter_traces", "read_traces"]
