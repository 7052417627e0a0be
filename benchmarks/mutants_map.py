"""Which tests enter which function of the library: recorded by a plugin of pytest, kept in ``.mutants/``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence, Set
from itertools import accumulate
from pathlib import Path

PROJECT = Path(__file__).parent.parent
MAP = PROJECT / ".mutants"

LOOK_AT_ALL = (
    "tests/docs/test_signatures.py::test_what_users_call_is_what_was_recorded",
    "tests/cli/test_options.py::test_the_options_are_those_that_were_recorded",
    "tests/test_frozen.py::test_a_dataclass_is_frozen_unless_it_changes_as_it_is_used",
    "tests/test_frozen.py::test_a_dataclass_with_arrays_generates_no_equality_which_would_raise",
    "tests/test_frozen.py::test_fields_that_could_be_mixed_up_are_given_by_name",
)
"""Tests of what modules hold, which enter no function of theirs; they run last, for every mutant."""

SHARED = "@"
"""Begins the name of a fixture that several tests share: those that run together pay for it once."""

LONGEST = 80.0
"""Seconds of tests, as recorded, that are run for a mutant at most; without the recorder they take half as long."""


class Map:
    """Which tests enter which function, as ``record`` wrote it down."""

    def __init__(self, folder: Path = MAP) -> None:
        self.seconds: dict[str, float] = {}
        self.entered: dict[str, set[str]] = {}
        for path in folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                test, seconds, names = json.loads(line)
                self.seconds[test] = max(seconds, self.seconds.get(test, 0.0))
                self.entered.setdefault(test, set()).update(names)
        self.shared = {test: {name for name in names if name[0] == SHARED} for test, names in self.entered.items()}
        for test in self.entered:
            self.entered[test] = self.entered[test].union(*(self.entered.get(one, ()) for one in self.shared[test]))
        if not self.seconds:
            raise SystemExit(f"{folder} holds no record of the tests: run python benchmarks/mutants.py --map")

    def takes(self, tests: Sequence[str], paid: Set[str] = frozenset()) -> float:
        """Return the seconds that these tests take together, beside what is paid for already."""
        needed = set(tests).union(*(self.shared.get(test, ()) for test in tests)) - paid
        return sum(self.seconds.get(one, 0.0) for one in needed)

    def tests(self, file: str, function: str) -> list[str]:
        """Return the tests of a function, or of all functions of a file; those that enter least come first."""
        wanted = f"{file}:{function}"
        held = [
            test
            for test, names in self.entered.items()
            if test[0] != SHARED and (wanted in names if function else any(name.startswith(wanted) for name in names))
        ]
        chosen: list[str] = []
        left, paid = LONGEST, set[str]()
        for test in sorted(held, key=lambda one: len(self.entered[one])):
            takes = self.takes([test], paid)
            if takes <= left or not chosen:
                chosen.append(test)
                left -= takes
                paid |= self.shared[test]
        return [*chosen, *(test for test in LOOK_AT_ALL if test not in chosen)]

    def quickest(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Return those of these tests that take least, as many as so many seconds hold."""
        ordered = sorted(tests, key=lambda test: self.takes([test]))
        sums = accumulate(self.takes([test]) for test in ordered)
        return [test for test, until in zip(ordered, sums, strict=True) if until <= seconds]


def record(tests: Sequence[str]) -> None:
    """Run tests and record what they enter, beside what is known of others; without any, all, and all anew."""
    if not tests:
        shutil.rmtree(MAP, ignore_errors=True)
    MAP.mkdir(exist_ok=True)
    environment = {**os.environ, "PACELINE_TOUCHED": str(MAP), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(PROJECT / "tests" / "touching"), os.environ.get("PYTHONPATH")])
    )
    options = ["-q", "-p", "touched", "-n", "2", "--dist", "loadfile", "-m", "not soak and not alone"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=PROJECT, env=environment, check=False)
