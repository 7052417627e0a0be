"""A plugin that records which functions of the library each test enters: ``python benchmarks/mutants.py --map``.

Functions are kept by file and name, not by line, so that the record outlives edits elsewhere in a file. What the ranks
of ``tests/ranks.py`` enter counts as entered by their test; what other processes enter is not seen.
"""

import json
import os
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pytest

FOLDER = "PACELINE_TOUCHED"
"""Environment variable that names the folder to write to, one file a process."""

LIBRARY = Path(__file__).resolve().parent.parent


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
        return sorted({name for code in self.codes for name in [_name(code.co_filename, code.co_qualname)] if name})


@cache
def _name(file, function):
    """Return ``solver/split.py:split``; nothing for what is not the library's."""
    if not Path(file).is_absolute():
        return ""
    path = Path(file).resolve()  # rooms are links in src/paceline
    if not path.is_relative_to(LIBRARY) or path.is_relative_to(LIBRARY / "tests") or ".venv" in path.parts:
        return ""
    return f"{path.relative_to(LIBRARY)}:{function.replace('.<locals>', '')}"


def note(test, seconds, names):
    """Add a line to this process's file."""
    with (Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([test, round(seconds, 3), names]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Record a test with its fixtures."""
    touched, began = Touched(), time.process_time()
    os.environ["PYTEST_TOUCHING"] = item.nodeid
    touched.start()
    try:
        return (yield)
    finally:
        note(item.nodeid, time.process_time() - began, touched.names())
