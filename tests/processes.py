"""Which tests start processes: they carry the mark ``processes``, which ``make quick`` leaves out.

The mark is set where a test, one of its fixtures or what they call in ``tests/`` names something that starts one, and
where a parameter ``num_workers`` is not 0. A test that lets the library start one, out of recognition, carries it by
hand.
"""

import sys
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

TESTS = Path(__file__).parent

STARTERS = {"subprocess", "multiprocessing"}
"""Modules that start processes."""

CALLS = {"fork", "forkpty", "posix_spawn", "system"}
"""Functions of ``os`` that do."""


def starts_processes(item):
    """Return whether a test, or a fixture of it, names what starts processes; doctests are asked by their text."""
    if isinstance(item, pytest.DoctestItem):
        return any(name in item.dtest.docstring for name in STARTERS)
    if getattr(item, "callspec", None) and item.callspec.params.get("num_workers"):
        return True
    fixtures = [of_name[-1].func for of_name in item._fixtureinfo.name2fixturedefs.values()]
    return any(_starts(one) for one in [item.function, *fixtures])


def _starts(thing):
    """Return whether something of ``tests/`` names what starts processes; of others nobody looks inside."""
    thing = thing.hypothesis.inner_test if hasattr(thing, "hypothesis") else thing
    thing = getattr(thing, "__wrapped__", thing)
    if not isinstance(thing, type | FunctionType) or not _is_ours(thing.__module__):
        return False
    if thing not in _known:
        _known[thing] = False  # one that calls itself
        _known[thing] = _reaches(thing)
    return _known[thing]


_known = {}


def _reaches(thing):
    if isinstance(thing, type):
        return any(_starts(value) for value in vars(thing).values() if isinstance(value, FunctionType))
    names = _names(thing.__code__)
    known = [thing.__globals__[name] for name in names if name in thing.__globals__]
    if names & STARTERS or ("os" in names and names & CALLS) or any(_is_starter(one) for one in known):
        return True
    modules = [one for one in known if isinstance(one, ModuleType) and _is_ours(one.__name__)]
    inside = [getattr(one, name) for one in modules for name in names if name in vars(one)]
    return any(_starts(one) for one in [*known, *inside])


def _names(code):
    """Return the names in a function and in those inside it."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


def _is_starter(thing):
    if isinstance(thing, ModuleType):
        return thing.__name__ in STARTERS
    return type(thing).__module__.split(".")[0] == "multiprocessing"


@cache
def _is_ours(module):
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and TESTS in Path(file).parents
