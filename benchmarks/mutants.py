"""Which small mistakes the tests would not notice: mutants of a file, sampled, and the tests run against each.

Run as ``python benchmarks/mutants.py solver/share.py tests/test_split.py``, or ``make mutants FILE=... TESTS=...``. It
works on a copy, writes nothing here, and prints the survivors as lines to look at: some change nothing that matters.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent.parent

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
    """A source with one change, and the line it stands in."""

    line: int
    what: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield the source with one operator, constant or name changed at a time."""
    for k, node in enumerate(ast.walk(ast.parse(source))):
        for what in _changes(node):
            tree = ast.parse(source)
            twin = next(other for at, other in enumerate(ast.walk(tree)) if at == k)
            before = ast.unparse(twin)
            _change(twin, what)
            yield Mutant(twin.lineno, f"{before} -> {ast.unparse(twin)}", ast.unparse(tree))


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


def killed(copy: Path, file: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Say whether the tests fail, or do not end, with this mutant in the place of the file."""
    original = (copy / file).read_text()
    (copy / file).write_text(mutant.source)
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=300)
        return done.returncode != 0  # also where the tests cannot even be collected
    except subprocess.TimeoutExpired:
        return True
    finally:
        (copy / file).write_text(original)


def main() -> None:
    """Sample mutants of a file, and print those that no test notices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = list(mutants((HERE / options.file).read_text()))
    sample = random.Random(options.seed).sample(found, min(options.count, len(found)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(HERE, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache"))
        survivors = [one for one in sample if not killed(copy, options.file, one, options.tests)]
    for one in survivors:
        print(f"{options.file}:{one.line}: {one.what}")
    print(f"{len(sample) - len(survivors)} of {len(sample)} mutants of {len(found)} were killed")


if __name__ == "__main__":
    main()
