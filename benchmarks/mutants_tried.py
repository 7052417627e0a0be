"""Trying mutants: a file of a copy of the project changes, and the tests that enter its function run until one fails.

The first look is quick: a fork of a process that has collected all tests replaces the function's code. What that does
not notice is tried in a process that imports and collects anew, which decides.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TypedDict

from mutants_made import Place, mutant
from mutants_map import LOOK_AT_ALL, PROJECT, Map
from mutants_run import ALL, CANNOT, FORK, Collected, anew, in_fork

PRELOADED = ("numpy", "pandas", "pytest", "scipy.optimize", "torch.distributed")
"""Libraries that the tests share, imported once: each mutant runs in a fork."""

AT_ONCE = 2
"""Mutants that are tried at once, one a core."""

SECONDS = count(1)
"""Times of change for the files of mutants, each another: compiled files are taken by size and second."""

PATIENCE = 15.0
"""Seconds, beside ten times what a test took when it was recorded, after which it never ends."""

FIRST_LOOK = 15.0
"""Seconds of tests, as recorded, that the first look takes at most."""


class Tried(TypedDict):
    """What became of a mutant: ``killed``, ``survived``, or ``no test`` enters the function."""

    file: str
    name: str
    outcome: str
    tests: int


def tried(chosen: Sequence[tuple[str, Place]], recorded: Map) -> Iterator[Tried]:
    """Yield what became of each mutant, in order; some are tried at once, each in a copy of the project."""
    for library in PRELOADED:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(Copy(Path(folder) / str(number), recorded))

        def one(named: tuple[str, Place]) -> Tried:
            copy = copies.get()
            try:
                return copy.tried(*named)
            finally:
                copies.put(copy)

        try:
            yield from pool.map(one, chosen)
        finally:
            for _ in range(AT_ONCE):
                copies.get().close()


class Copy:
    """A copy of the project, in which one mutant at a time is tried."""

    def __init__(self, folder: Path, recorded: Map) -> None:
        self._project, self._noted, self._recorded = folder / "copy", folder / "failed", recorded
        unneeded = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".mutants", "build")
        shutil.copytree(PROJECT, self._project, symlinks=True, ignore=unneeded)
        self._asked, theirs = multiprocessing.Pipe()
        FORK.Process(target=Collected(self._project, self._noted, theirs).serve).start()
        self._sound: set[str] = set()

    def close(self) -> None:
        """End the process that has collected the tests."""
        self._asked.send(None)

    def tried(self, file: str, place: Place) -> Tried:
        """Return what becomes of a mutant."""
        source = (self._project / file).read_text()  # the project may be worked on meanwhile
        one, tests = mutant(source, place), self._recorded.tests(file, place.function)
        self._write(file, one.source)
        failed = self._ask((file, source, place), self._recorded.quickest(tests, FIRST_LOOK))
        self._write(file, source)
        outcome = "killed" if self._is_sound(failed) else self._decided(file, one.source, source, tests)
        self._write(file, source)
        return Tried(file=file, name=one.name, outcome=outcome, tests=len(tests))

    def _is_sound(self, failed: str) -> bool:
        """Return whether this is a test, and passes without a change; asked once of each."""
        if failed not in self._sound and failed not in ("", CANNOT, ALL) and not self._ask(None, [failed]):
            self._sound.add(failed)
        return failed in self._sound

    def _ask(self, change: tuple[str, str, Place] | None, tests: Sequence[str]) -> str:
        self._asked.send((change, self._patience(tests)))
        return str(self._asked.recv())

    def _decided(self, file: str, changed: str, source: str, tests: Sequence[str]) -> str:
        """Return what all its tests say; one that fails without the change too, as one that is flaky, tells nothing."""
        while tests:
            failed = self._failed(file, changed, tests)
            if not failed:
                return "survived" if len(tests) > len(LOOK_AT_ALL) else "no test"
            without = self._failed(file, source, [failed] if failed in tests else tests)
            if not without:
                return "killed"
            tests = [test for test in tests if test not in (failed, without) and without in tests]
        return "no test"

    def _failed(self, file: str, source: str, tests: Sequence[str]) -> str:
        self._write(file, source)
        patience = self._patience(tests)
        return in_fork(lambda: anew(self._project, patience, self._noted), sum(patience.values()), self._noted)

    def _patience(self, tests: Sequence[str]) -> dict[str, float]:
        return {test: PATIENCE + 10 * self._recorded.takes([test]) for test in tests}

    def _write(self, file: str, source: str) -> None:
        (self._project / file).write_text(source)
        second = next(SECONDS)
        os.utime(self._project / file, (second, second))
