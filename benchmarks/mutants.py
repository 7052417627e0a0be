"""Small mistakes that the tests would not notice: mutants drawn over the whole library, the tests run against each.

``--map`` records which tests enter which function, into ``.mutants/`` (as long as ``make test`` takes, and more);
``--map tests/solver`` records these anew.
``--seed 7 --count 60`` draws files in proportion to their lines, and in each a change; it runs the tests that enter the
function changed, those that enter least first, until one fails. The sample is added to mutants.json under its seed, and
mutants.md is written; one of some rooms only, ``--rooms solver eval``, is printed and not kept. Why a survivor changes
nothing that a caller could see stands in mutants.toml.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypedDict

from mutants_made import Mutant, Place, mutant, places
from mutants_page import page

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parent
COUNTS = HERE / "mutants.json"
MAP = PROJECT / ".mutants"

ROOMS = ("coordinator", "datasets", "engines", "eval", "lab", "predictors", "recording", "runs", "solver", "training")
ROOMS += ("audit", "report", "src/paceline")

PRELOADED = ("numpy", "pandas", "pytest", "scipy.optimize", "torch.distributed")
"""Libraries that the tests share, imported once: each mutant runs in a fork."""

AT_ONCE = 2
"""Mutants that are tried at once, one a core."""

SECONDS = count(1)
"""Times of change for the files of mutants, each another."""

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

PATIENCE = 15.0
"""Seconds, beside ten times what a test took when it was recorded, after which it never ends."""


class Tried(TypedDict):
    """What became of a mutant: ``killed``, ``survived``, or ``no test`` enters the function."""

    file: str
    name: str
    outcome: str
    tests: int


def library(rooms: Sequence[str] = ROOMS) -> dict[str, int]:
    """Return the files of the library with their numbers of lines."""
    found = [path for room in rooms for path in sorted((PROJECT / room).rglob("*.py"))]
    return {str(path.relative_to(PROJECT)): len(path.read_text().splitlines()) for path in found}


def drawn(seed: int, number: int, rooms: Sequence[str] = ROOMS) -> Iterator[tuple[str, Place]]:
    """Yield files with a place in each, none twice."""
    rng, lines = random.Random(seed), library(rooms)
    seen: set[tuple[str, Place]] = set()
    while len(seen) < number:
        (file,) = rng.choices(list(lines), weights=list(lines.values()))
        found = places((PROJECT / file).read_text())
        one = (file, rng.choice(found)) if found else None
        if one is not None and one not in seen:
            seen.add(one)
            yield one


def again(sample: list[Tried], judged: dict[str, dict[str, str]]) -> Iterator[tuple[str, Place]]:
    """Yield the places of those neither killed nor judged equivalent, as far as their lines are still there."""
    for one in sample:
        if one["outcome"] != "killed" and one["name"] not in judged.get(one["file"], {}):
            source = (PROJECT / one["file"]).read_text()
            found = [place for place in places(source) if mutant(source, place).name == one["name"]]
            yield from [(one["file"], place) for place in found[:1]]


class Map:
    """Which tests enter which function, as ``--map`` recorded it."""

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


def tried(chosen: list[tuple[str, Place]], recorded: Map) -> Iterator[Tried]:
    """Yield what became of each mutant, in order; some are tried at once, each in a copy of the project."""
    for library in PRELOADED:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copy = Path(folder) / str(number) / "copy"
            shutil.copytree(PROJECT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", ".*_cache"))
            copies.put(copy)
        yield from pool.map(lambda one: _tried(*one, recorded, copies), chosen)


def _tried(file: str, place: Place, recorded: Map, copies: SimpleQueue[Path]) -> Tried:
    copy = copies.get()
    source = (copy / file).read_text()  # the project may be worked on meanwhile
    one, tests = mutant(source, place), recorded.tests(file, place.function)
    outcome = _outcome(copy, file, one, source, tests, recorded)
    (copy / file).write_text(source)
    copies.put(copy)
    return Tried(file=file, name=one.name, outcome=outcome, tests=len(tests))


def _outcome(copy: Path, file: str, one: Mutant, source: str, tests: list[str], recorded: Map) -> str:
    """Return what becomes of a mutant; a test that fails without it too, as one that is flaky, tells nothing."""
    while tests:
        patience = {test: PATIENCE + 10 * recorded.takes([test]) for test in tests}
        failed = _failed(copy, file, one.source, patience)
        if not failed:
            return "survived" if len(tests) > len(LOOK_AT_ALL) else "no test"
        without = _failed(copy, file, source, {failed: patience[failed]} if failed in tests else patience)
        if not without:
            return "killed"
        tests = [test for test in tests if test not in (failed, without) and without in tests]
    return "no test"


def _failed(copy: Path, file: str, source: str, patience: dict[str, float]) -> str:
    """Return the test that fails with this source in the place of the file; ``all`` if they do not begin or end."""
    (copy / file).write_text(source)
    # Compiled files are taken by size and second, and both may be those of the mutant before.
    second = next(SECONDS)
    os.utime(copy / file, (second, second))
    noted = copy.parent / "failed"
    noted.write_text("all")
    process = multiprocessing.get_context("fork").Process(target=_test, args=(copy, patience, noted))
    process.start()
    deadline = time.monotonic() + sum(patience.values())
    while process.is_alive() and time.monotonic() < deadline:  # a join waits also for all that it has started
        time.sleep(0.01)
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):  # what a test that never ends has started
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return "" if process.exitcode == 0 else noted.read_text()


def _test(copy: Path, patience: dict[str, float], noted: Path) -> None:
    os.setsid()
    os.chdir(copy)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "CI": "1"}
    sys.path.insert(0, str(copy / "src"))
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(copy.parent / "tests")]
    files = [file for file in dict.fromkeys(test.partition("::")[0] for test in patience) if (copy / file).exists()]
    # Without what Python does at its end, which fails in a fork of a thread.
    os._exit(int(pytest.main([*options, *files], plugins=[FirstFailure(patience, noted)])))


class FirstFailure:
    """Runs these tests as far as there still are such, in the order of the first of each file, and notes which fails.

    One that takes longer than its patience, in seconds, ends the process. Hypothesis stops at the first example that
    fails: to find the smallest takes longer than all the tests.
    """

    def __init__(self, patience: dict[str, float], noted: Path) -> None:
        self.place, self.noted = {test: place for place, test in enumerate(patience)}, noted
        self.patience = patience

    def pytest_collection_modifyitems(self, session: pytest.Session) -> None:
        """Leave out the others."""
        held = (test for test in session.items if test.nodeid in self.place)
        kept = sorted(held, key=lambda test: self.place[test.nodeid])
        files = list(dict.fromkeys(test.path for test in kept))  # those of a file together: they share fixtures
        session.items[:] = sorted(kept, key=lambda test: files.index(test.path))

    def pytest_configure(self) -> None:
        """Load the settings, after those of tests/conftest.py."""
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note it as the one that fails, should it never end."""
        self.noted.write_text(nodeid)
        signal.setitimer(signal.ITIMER_REAL, self.patience[nodeid])

    def pytest_runtest_logreport(self, report: object) -> None:
        """Note it."""
        if getattr(report, "failed", False):
            self.noted.write_text(getattr(report, "nodeid", "all"))


def keep(one: Tried, counts: dict[str, list[Tried]]) -> None:
    """Print what became of a mutant, and write down all that is known."""
    print(f"{one['outcome']:8} {one['tests']:4} tests  {one['file']}: {one['name']}", flush=True)
    if counts:
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


def main() -> None:
    """Draw mutants, print those that no test notices, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", nargs="*", metavar="TESTS", help="record which functions tests enter: these, or all")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, choices=ROOMS, help="draw in these only")
    parser.add_argument("--again", type=int, help="the seed of a sample whose survivors are tried again")
    parser.add_argument("--page", action="store_true", help="write the page anew, from what is known")
    asked = parser.parse_args()
    for file, _, test in (one.partition("::") for one in LOOK_AT_ALL):
        if f"def {test}(" not in (PROJECT / file).read_text():
            parser.error(f"{file} holds no {test}: name it anew in LOOK_AT_ALL")
    if asked.map is not None:
        record(asked.map)
    judged: dict[str, dict[str, str]] = tomllib.loads((HERE / "mutants.toml").read_text())
    counts: dict[str, list[Tried]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if asked.seed is not None:
        sample: list[Tried] = []
        whole = asked.rooms == ROOMS
        for one in tried(list(drawn(asked.seed, asked.count, asked.rooms)), Map()):
            sample.append(one)
            keep(one, counts | {str(asked.seed): sample} if whole else {})
        counts |= {str(asked.seed): sample} if whole else {}
    if asked.again is not None:
        sample = counts[str(asked.again)]
        for one in tried(list(again(sample, judged)), Map()):
            (place,) = [k for k, old in enumerate(sample) if (old["file"], old["name"]) == (one["file"], one["name"])][
                :1
            ]
            sample[place] = one
            keep(one, counts)
    if asked.seed is not None or asked.again is not None or asked.page:
        (HERE / "mutants.md").write_text(page(counts, judged))


if __name__ == "__main__":
    main()
