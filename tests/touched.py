"""A plugin that records which functions of the library each test enters: ``python benchmarks/mutants.py --map``.

What the processes that a test starts enter counts as entered by it: see ``touching/sitecustomize.py``.
"""

import functools
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import sitecustomize as touching


class Touched:
    """The functions entered since the last look, by the test or the shared fixture that runs now."""

    def __init__(self):
        self.codes, self.shared = set(), []
        self.folder = Path(os.environ[touching.FOLDER])
        self.current = self.folder / f"{os.getpid()}.test"
        os.environ[touching.CURRENT] = str(self.current)

    @contextmanager
    def by(self, name):
        """Note what is entered meanwhile under this name; what is around goes on afterwards."""
        around, self.codes, began = self.codes, set(), time.monotonic()
        around_name = self.current.read_text() if self.current.exists() else ""
        self.current.write_text(name)
        try:
            yield
        finally:
            own, self.codes = self.codes.copy(), around  # threads that were traced go on adding to it
            self.current.write_text(around_name)
            self.note(name, time.monotonic() - began, own)

    def note(self, name, seconds, codes):
        """Write down what was entered; a test enters what its shared fixtures entered, whoever was first."""
        names = {found for code in codes if (found := touching.name_of(code.co_filename, code.co_qualname))}
        touching.note(self.folder / f"{os.getpid()}.jsonl", name, seconds, [*sorted(names), *self.shared])

    def enter(self, frame, event, argument):
        """Take the place of a tracer; returns None: lines inside are not traced."""
        self.codes.add(frame.f_code)


@functools.cache
def touched():
    return Touched()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Record a test with its own fixtures."""
    touching.caches.clear()
    with touched().by(item.nodeid):
        threading.settrace(touched().enter)
        sys.settrace(touched().enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            wanted = set(getattr(item, "fixturenames", ()))
            touched().shared = [one for one, fixture, of in shared if fixture in wanted and item.nodeid.startswith(of)]


shared = []
"""The fixtures of whole modules that were set up, as recorded; each with its name and the node whose tests share it."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Record a fixture that tests share by itself."""
    if fixturedef.scope == "function":
        return (yield)
    name = f"@{request.node.nodeid}@{fixturedef.argname}"
    shared.append((name, fixturedef.argname, request.node.nodeid))
    touched().shared = []
    with touched().by(name):
        return (yield)
