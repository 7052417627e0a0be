"""Faults of the past, listed in ``faults.toml``: each is put into a copy of the checkout, where tests must fail.

``before`` stands exactly once in ``file`` and is replaced by ``after``; ``noticed_by`` names tests of which at least
one must fail; ``what`` says what a user saw.
"""

import ast
import compileall
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

CHECKOUT = Path(__file__).parents[2]
FAULTS = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))["fault"]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo-output")

pytestmark = pytest.mark.checkout


def named(fault):
    return fault["name"]


def changed(fault, root):
    """Return the file of a fault under a root, its text, and its text with the fault."""
    path = root / fault["file"]
    text = path.read_text(encoding="utf-8")
    assert text.count(fault["before"]) == 1, f"{fault['file']} must hold this once: {fault['before']!r}"
    return path, text, text.replace(fault["before"], fault["after"])


@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_fault_fits_the_code(fault):
    assert set(fault) == {"name", "what", "file", "before", "after", "noticed_by"}
    changed(fault, CHECKOUT)


@functools.cache
def functions(file):
    """Return the names of a file's functions."""
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_named_tests_exist(fault):
    assert fault["noticed_by"]
    for test in fault["noticed_by"]:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), test


def test_names_of_faults_differ():
    assert len(set(map(named, FAULTS))) == len(FAULTS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout, whose compiled files are judged by content: a change may take less than a second."""
    root = tmp_path_factory.mktemp("faults") / "checkout"
    shutil.copytree(CHECKOUT, root, symlinks=True, ignore=LEFT_OUT)
    for folder in ("predictors", "datasets", "eval", "training", "src", "tests"):
        compileall.compile_dir(root / folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return root


def run_pytest(root, tests):
    """Run tests in a copy and return the exit code and the output of pytest."""
    paths = os.pathsep.join([str(root / "src"), str(root / "tests" / "faults")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    plugins = ["-p", "unshrunk", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=120", *plugins]
    run = subprocess.run(
        [*command, "--tb=short", *tests], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout + run.stderr


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_tests_pass_without_faults(copy):
    code, output = run_pytest(copy, sorted({test for fault in FAULTS for test in fault["noticed_by"]}))
    assert code == 0, output


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_fault_is_noticed(copy, fault):
    path, text, faulty = changed(fault, copy)
    path.write_text(faulty, encoding="utf-8")
    try:
        code, output = run_pytest(copy, ["-x", *fault["noticed_by"]])
    finally:
        path.write_text(text, encoding="utf-8")
    assert code == 1, output
    assert re.search(r"^FAILED ", output, re.MULTILINE), output
    assert not re.search(r"^ERROR \S+::", output, re.MULTILINE), output
