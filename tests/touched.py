"""A plugin that records which functions of the library each test enters: ``python benchmarks/mutants.py --map``.

What the processes that a test starts enter counts as entered by it: see ``touching/sitecustomize.py``.
"""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
import sitecustomize as touching


class Touched:
    """The functions entered since the last look."""

    def __init__(self):
        self.codes = set()

    def start(self):
        self.codes.clear()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame, event, argument):
        self.codes.add(frame.f_code)  # returns None: lines inside are not traced

    def names(self):
        """Return the names of the functions, and record no more."""
        sys.settrace(None)
        threading.settrace(None)
        codes = self.codes.copy()  # threads that were traced go on adding to it
        return sorted({name for code in codes if (name := touching.name_of(code.co_filename, code.co_qualname))})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Record a test with its fixtures."""
    folder = Path(os.environ[touching.FOLDER])
    current = folder / f"{os.getpid()}.test"
    current.write_text(item.nodeid)
    os.environ[touching.CURRENT] = str(current)
    touched, began = Touched(), time.monotonic()
    touched.start()
    try:
        return (yield)
    finally:
        seconds = time.monotonic() - began
        touching.note(folder / f"{os.getpid()}.jsonl", item.nodeid, seconds, touched.names())
