"""Running tests in a fork, and noting which fails: all collected before, or imported and collected anew."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from mutants_replaced import CannotReplaceError, Functions

if TYPE_CHECKING:
    import pytest
    from mutants_made import Place

FORK = multiprocessing.get_context("fork")

ALL, CANNOT = "all", "cannot"
"""Noted in place of a test: none began, or the change cannot be made in this process."""


def in_fork(run: Callable[[], int], seconds: float, noted: Path) -> str:
    """Return the test that was noted as failed in a fork; empty if it returns 0 in so many seconds."""
    noted.write_text(ALL)
    process = FORK.Process(target=_alone, args=(run,))
    process.start()
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline:  # a join waits also for all that it has started
        time.sleep(0.01)
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):  # what a test that never ends has started
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return "" if process.exitcode == 0 else noted.read_text()


def _alone(run: Callable[[], int]) -> None:
    os.setsid()
    os._exit(run())  # without what Python does at its end, which fails in a fork of a thread


def anew(project: Path, patience: Mapping[str, float], noted: Path) -> int:
    """Run tests, of a project that nothing was imported of, until one fails; their files are collected."""
    files = [one for one in dict.fromkeys(test.partition("::")[0] for test in patience) if (project / one).exists()]
    failure = FirstFailure(noted)
    failure.patience = patience
    return _pytest(project, ["-x", *files], failure, Chosen(list(patience)))


def _pytest(project: Path, options: list[str], *plugins: object) -> int:
    import pytest

    os.chdir(project)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.environ |= {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1", "CI": "1"}
    sys.path.insert(0, str(project / "src"))
    own = ["-q", "-p", "no:cacheprovider", "--basetemp", str(project.parent / "tests")]
    return int(pytest.main([*own, *options], plugins=plugins))


class FirstFailure:
    """Notes which test fails; one that takes longer than its patience, in seconds, ends the process.

    Hypothesis stops at the first example that fails: to find the smallest takes longer than all the tests.
    """

    def __init__(self, noted: Path) -> None:
        self.noted, self.has_failed = noted, False
        self.patience: Mapping[str, float] = {}

    def pytest_configure(self) -> None:
        """Load the settings, after those of tests/conftest.py."""
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note it as the one that fails, should it never end."""
        self.noted.write_text(nodeid)
        signal.setitimer(signal.ITIMER_REAL, self.patience[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note it."""
        if report.failed:
            self.has_failed = True
            self.noted.write_text(report.nodeid)


class Chosen:
    """Runs these tests as far as there still are such, in the order of the first of each file."""

    def __init__(self, tests: list[str]) -> None:
        self._place = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, session: pytest.Session) -> None:
        """Leave out the others."""
        held = (test for test in session.items if test.nodeid in self._place)
        kept = sorted(held, key=lambda test: self._place[test.nodeid])
        files = list(dict.fromkeys(test.path for test in kept))  # those of a file together: they share fixtures
        session.items[:] = sorted(kept, key=lambda test: files.index(test.path))


class Collected:
    """All tests of a project, collected in one process; those that it is asked for run in a fork of it."""

    def __init__(self, project: Path, noted: Path, asked: Connection) -> None:
        self._project, self._asked, self._failure = project, asked, FirstFailure(noted)
        self._asks = os.getpid()

    def serve(self) -> None:
        """Collect the tests, and answer until None is asked."""
        os._exit(_pytest(self._project, ["-m", "not soak and not alone"], self._failure, self))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer which test fails after a change: a file, its source before, and the place; empty if none does."""
        gc.unfreeze()
        functions, tests = Functions(self._project), {test.nodeid: test for test in session.items}
        gc.freeze()
        for change, patience in self._requests():
            self._failure.patience = {test: seconds for test, seconds in patience.items() if test in tests}
            chosen = [tests[test] for test in self._failure.patience]
            run = partial(self._run, functions, change, chosen)
            self._asked.send(in_fork(run, sum(patience.values()), self._failure.noted))
        return True

    def _requests(self) -> Iterator[tuple[tuple[str, str, Place] | None, dict[str, float]]]:
        """Yield what is asked until it is None, or who asks was killed."""
        while os.getppid() == self._asks:
            if self._asked.poll(1.0):
                request = self._asked.recv()
                if request is None:
                    return
                yield request

    def _run(self, functions: Functions, change: tuple[str, str, Place] | None, chosen: list[pytest.Item]) -> int:
        try:
            if change:
                functions.replace(*change)
        except CannotReplaceError:
            self._failure.noted.write_text(CANNOT)
            return 1
        for test, after in zip_longest(chosen, chosen[1:]):
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
            if self._failure.has_failed:
                return 1
        return 0
