"""Records which functions of the library a process enters: Python imports this by itself in every one that finds it.

Functions are kept by file and name, not by line, so that the record outlives edits elsewhere in a file. Each is written
as it is first entered: processes may be killed.
"""

import functools
import json
import os
import sys
import threading
from pathlib import Path

FOLDER, CURRENT = "PACELINE_TOUCHED", "PACELINE_TOUCHED_TEST"
"""Environment variables that name the folder to write to, and the file with the name of the test that runs."""

LIBRARY = Path(__file__).resolve().parent.parent.parent


def begin():
    """Record from now on what this process enters, for the test that runs now."""
    try:
        test = Path(os.environ[CURRENT]).read_text()
    except (KeyError, OSError):  # no test runs yet
        return
    known, file = set(), Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl"

    def enter(frame, event, argument):
        if frame.f_code not in known:
            known.add(frame.f_code)
            if name := name_of(frame.f_code.co_filename, frame.f_code.co_qualname):
                note(file, test, 0.0, [name])

    threading.settrace(enter)
    sys.settrace(enter)  # it returns None: lines inside are not traced


class Caches:
    """Empties the caches of the library: what one holds from an earlier test is not entered again."""

    def __init__(self):
        self.found, self._make = [], functools.lru_cache

    def lru_cache(self, *given, **named):
        """Take the place of :func:`functools.lru_cache`."""
        made = self._make(*given, **named)
        return self._known(made) if hasattr(made, "cache_clear") else lambda function: self._known(made(function))

    def clear(self):
        """Empty those of the library."""
        for one in self.found:
            if one.__module__.startswith("paceline."):
                one.cache_clear()

    def _known(self, cached):
        self.found.append(cached)
        return cached


def note(file, test, seconds, names):
    """Add a line to a file."""
    with file.open("a") as lines:
        lines.write(json.dumps([test, round(seconds, 3), names]) + "\n")


@functools.cache
def name_of(file, function):
    """Return ``solver/split.py:split``; nothing for what is not the library's."""
    if not Path(file).is_absolute():
        return ""
    path = Path(file).resolve()  # rooms are links in src/paceline
    if not path.is_relative_to(LIBRARY) or path.is_relative_to(LIBRARY / "tests") or ".venv" in path.parts:
        return ""
    return f"{path.relative_to(LIBRARY)}:{function.replace('.<locals>', '')}"


caches = Caches()
if FOLDER in os.environ:
    functools.lru_cache = caches.lru_cache
    os.register_at_fork(after_in_child=begin)
    begin()
