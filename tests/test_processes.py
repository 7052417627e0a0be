"""A test that starts a process carries the mark, or fails."""

import importlib
import sys

import processes
import pytest
from ranks import run_ranks


def silent(rank):
    """A rank that does nothing."""


def through_a_helper():
    return run_ranks(1, silent)


def names_a_module():
    import subprocess

    return subprocess.run([sys.executable, "-c", ""], check=True)


def starts_nothing():
    return sorted([2, 1])


@pytest.mark.parametrize(("function", "starts"), [(through_a_helper, 1), (names_a_module, 1), (starts_nothing, 0)])
def test_what_starts_processes_is_seen_through_helpers(function, starts):
    assert processes._starts(function) == starts


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("subprocess", lambda module: module.run([sys.executable, "-c", ""], check=False)),
        ("os", lambda module: module.system("true")),
        ("multiprocessing", lambda module: module.get_context("forkserver").Process(target=silent, args=(0,)).start()),
    ],
)
def test_a_process_out_of_sight_fails_the_test_that_starts_it(request, module, call):
    guard = request.config.pluginmanager.get_plugin("processes")
    assert not request.node.get_closest_marker("processes"), "it names none, so that the guard has to notice"
    with pytest.raises(RuntimeError, match="mark it with"):
        call(importlib.import_module(module))
    assert guard.caught
    guard.caught = False
