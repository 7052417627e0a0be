"""Which small mistakes the tests would not notice: mutants of a file, sampled, and the tests run against each.

Run as ``python benchmarks/mutants.py solver/share.py``, or ``make mutants FILE=solver/share.py``. The file's tests, and
survivors that were judged to be equivalent, each with its reason, stand in mutants.toml. With ``--second`` it draws
a second sample from the mutants that the first did not hold. Tests are written for survivors of the first alone, so the
second says how tests fare with mistakes that nobody had in mind. Both are kept in mutants.json, and mutants.md is
written beside this file. With ``--survivors`` only those of the last time run again, after tests were added. With tests
named behind the file it takes a look, and prints only. It works on a copy.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).parent
PROJECT = HERE.parent
COUNTS = HERE / "mutants.json"

PRELOADED = ("numpy", "pandas", "pytest", "scipy.optimize", "torch.distributed")
"""Libraries that the tests share, imported once: each mutant runs in a fork."""

PATIENCE = 10.0
"""Seconds, beside five times what the tests took before, after which a mutant counts as one that never ends."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
RENAMED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "ceil": "floor", "floor": "ceil"}
RENAMED |= {"median": "mean", "mean": "median", "zeros": "ones", "ones": "zeros", "all": "any", "any": "all"}


@dataclass(frozen=True)
class Mutant:
    """A source with one change, the line it stands in, and what it is called: that line and the change."""

    line: int
    name: str
    source: str


class Met(TypedDict):
    """What happened to one sample of a file's mutants: how many there are, who was tried, and who survived."""

    found: int
    tried: list[str]
    survivors: list[str]


SAMPLES = {"first": 0, "second": 1}
"""The samples of a file, each with its seed."""


class Judged(TypedDict):
    """What mutants.toml says of a file: its tests, and why survivors change nothing that matters."""

    tests: list[str]
    equivalent: dict[str, str]


def mutants(source: str) -> Iterator[Mutant]:
    """Yield the source with one operator, constant or name changed at a time."""
    lines, whole = source.splitlines(), ast.parse(source)
    unseen = _annotations(whole)
    for k, node in enumerate(ast.walk(whole)):
        for what in _changes(node) if node not in unseen else []:
            tree = ast.parse(source)
            twin = next(other for at, other in enumerate(ast.walk(tree)) if at == k)
            before = ast.unparse(twin)
            _change(twin, what)
            # Not the line's number: the name outlives edits elsewhere in the file.
            name = f"{lines[twin.lineno - 1].strip()} | {before} -> {ast.unparse(twin)}"
            yield Mutant(twin.lineno, name, ast.unparse(tree))


def _annotations(whole: ast.AST) -> set[ast.AST]:
    """Return all that stands in an annotation, which nothing evaluates."""
    tops = [getattr(node, name, None) for node in ast.walk(whole) for name in ("annotation", "returns")]
    return {node for top in tops if top is not None for node in ast.walk(top)}


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        return ["operator"] if type(node.op) in SWAPPED else []
    if isinstance(node, ast.Compare):
        return ["comparison"] if type(node.ops[0]) in SWAPPED else []
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return ["constant"]
    if isinstance(node, ast.Attribute) and node.attr in RENAMED:
        return ["name"]
    return []


def _change(node: ast.AST, what: str) -> None:
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.Attribute):
        node.attr = RENAMED[node.attr]


def survivors(file: Path, sample: list[Mutant], tests: list[str]) -> Iterator[Mutant]:
    """Yield the mutants that no test notices."""
    for library in PRELOADED:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(PROJECT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache"))
        original, second, began = (copy / file).read_text(), count(1), time.monotonic()
        if not _passes(copy, file, original, tests, next(second), patience=600.0):
            raise SystemExit(f"{' '.join(tests)} fail without any mutant")
        patience = PATIENCE + 5 * (time.monotonic() - began)
        for one in sample:
            if _passes(copy, file, one.source, tests, next(second), patience):
                yield one


def _passes(copy: Path, file: Path, source: str, tests: list[str], second: int, patience: float) -> bool:
    """Say whether the tests pass in time with this source in the place of the file."""
    (copy / file).write_text(source)
    # Compiled files are taken by size and second, and both may be those of the mutant before.
    os.utime(copy / file, (second, second))
    process = multiprocessing.get_context("fork").Process(target=_test, args=(copy, tests))
    process.start()
    process.join(patience)
    if process.is_alive() and process.pid is not None:  # a mutant that never ends, and all that it started
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def _test(copy: Path, tests: list[str]) -> None:
    os.setsid()
    os.chdir(copy)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "CI": "1"}
    sys.path.insert(0, str(copy / "src"))
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not soak and not alone"]
    sys.exit(pytest.main([*options, *tests], plugins=[FirstFailure()]))


class FirstFailure:
    """Lets Hypothesis stop at the first example that fails: to find the smallest takes longer than all the tests."""

    def pytest_configure(self) -> None:
        """Load the settings, after those of tests/conftest.py."""
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")


def main() -> None:
    """Sample mutants of a file, print those that no test notices, and renew the file's row of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--second", action="store_const", const="second", default="first", dest="which")
    parser.add_argument("--survivors", action="store_true")
    asked = parser.parse_args()
    judged: dict[str, Judged] = tomllib.loads((HERE / "mutants.toml").read_text())
    if not asked.tests and asked.file not in judged:
        raise SystemExit(f"name the tests of {asked.file}, here or in mutants.toml")
    found = list(mutants((PROJECT / asked.file).read_text()))
    samples = known_counts().get(asked.file, {})
    if asked.survivors:
        tried, sample = again(found, samples[asked.which])
    else:
        sample = drawn(found, samples, asked.which, asked.count)
        tried = [one.name for one in sample]
    left = []
    for one in survivors(Path(asked.file), sample, asked.tests or judged[asked.file]["tests"]):
        left.append(one.name)
        known = judged.get(asked.file, Judged(tests=[], equivalent={})).get("equivalent", {})
        print(f"{asked.file}:{one.line}: {one.name}{'  (equivalent)' if one.name in known else ''}", flush=True)
    print(f"{asked.file}: {len(tried) - len(left)} of {len(tried)} mutants of {len(found)} were killed", flush=True)
    if not asked.tests:
        renew(asked.file, asked.which, Met(found=len(found), tried=tried, survivors=left), judged)


def drawn(found: list[Mutant], samples: dict[str, Met], which: str, count: int) -> list[Mutant]:
    """Return a sample; the second holds nothing of the first."""
    first = samples["first"]["tried"] if which == "second" else []
    fresh = [one for one in found if one.name not in first]
    return random.Random(SAMPLES[which]).sample(fresh, min(count, len(fresh)))


def again(found: list[Mutant], before: Met) -> tuple[list[str], list[Mutant]]:
    """Return the names of a sample as far as its lines are still there, and the mutants that survived it."""
    names = {one.name for one in found}
    return [name for name in before["tried"] if name in names], [
        one for one in found if one.name in before["survivors"]
    ]


def renew(file: str, which: str, met: Met, judged: dict[str, Judged]) -> None:
    """Keep what a sample met, and write the page anew."""
    counts = known_counts()
    counts[file] = counts.get(file, {}) | {which: met}
    counts = {each: counts[each] for each in judged if each in counts}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    (HERE / "mutants.md").write_text(page(counts, judged))


def known_counts() -> dict[str, dict[str, Met]]:
    """Return what earlier runs found, by file and sample."""
    counts: dict[str, dict[str, Met]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    return counts


def page(counts: dict[str, dict[str, Met]], judged: dict[str, Judged]) -> str:
    """Return the page."""
    reasons = {file: told.get("equivalent", {}) for file, told in judged.items()}
    every = [(file, met, name) for file in counts for met in counts[file].values() for name in met["survivors"]]
    real = [f"- {file}: `{name}`" for file, _, name in every if name not in reasons[file]]
    why = [f"- {file}: `{name}`: {reasons[file][name]}" for file, _, name in every if name in reasons[file]]
    return PAGE.format(
        first_total=_effective(*totals(counts, "first", reasons)),
        second_total=_effective(*totals(counts, "second", reasons)),
        first=table(counts, "first", reasons),
        second=table(counts, "second", reasons),
        real="\n".join(real) or "None.",
        why="\n".join(why) or "None.",
    )


Reasons = dict[str, dict[str, str]]
"""Of each file, why survivors are equivalent."""


def table(counts: dict[str, dict[str, Met]], which: str, reasons: Reasons) -> str:
    """Return a row for each file of which there is such a sample, and one for all together."""
    rows = [
        f"| {file} | {samples[which]['found']} | {_columns(*figures(samples[which], reasons[file]))}"
        for file, samples in counts.items()
        if which in samples
    ]
    return "\n".join([*rows, f"| all | | {_columns(*totals(counts, which, reasons))}"])


def figures(met: Met, reasons: dict[str, str]) -> tuple[int, ...]:
    """Return how many mutants were tried, were killed, and are equivalent."""
    same = sum(name in reasons for name in met["survivors"])
    return len(met["tried"]), len(met["tried"]) - len(met["survivors"]), same


def totals(counts: dict[str, dict[str, Met]], which: str, reasons: Reasons) -> tuple[int, ...]:
    """Return these figures of all files together."""
    each = [figures(samples[which], reasons[file]) for file, samples in counts.items() if which in samples]
    return tuple(map(sum, zip((0, 0, 0), *each, strict=True)))


def _columns(tried: int, killed: int, equivalent: int) -> str:
    return f"{tried} | {killed} | {equivalent} | {_effective(tried, killed, equivalent)} |"


def _effective(tried: int, killed: int, equivalent: int) -> str:
    return f"{killed / max(tried - equivalent, 1):.1%}"


PAGE = """# Small mistakes that the tests notice

The aim is to notice 95 %. Of mutants for whose survivors tests were added it is {first_total}; of others, for which no
test had been written, {second_total}.

`python benchmarks/mutants.py FILE`, and then with `--second`, for each file of the tables. One operator, constant or
name of the file is changed at a time, drawn at random, and the tests of the file run (`mutants.toml` says which).
Survivors that change nothing a caller could see are equivalent, by our judgement. Effective is
killed / (mutants - equivalent).

## Mutants for whose survivors tests were added

| file | all mutants | sampled | killed | equivalent | effective |
| --- | --- | --- | --- | --- | --- |
{first}

## Other mutants, for which no test was written

Drawn from what the first sample left, once its tests were there, and run once. What survived led to further tests,
which this table does not count.

| file | all mutants | sampled | killed | equivalent | effective |
| --- | --- | --- | --- | --- | --- |
{second}

## Not noticed

Most of the second sample's are noticed by now.

{real}

## Equivalent, and why

{why}
"""

if __name__ == "__main__":
    main()
