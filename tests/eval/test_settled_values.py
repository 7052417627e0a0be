"""Constants, defaults and kinds of records of evaluations and reports are what they were: who changes one means it."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from kept import require_kept

KEPT = Path(__file__).parent / "settled_values.json"
ROOMS = ("eval", "report")
PLAIN = (bool, int, float, str, tuple, list, dict)


def modules(room):
    pytest.importorskip("torch")
    package = importlib.import_module(f"paceline.{room}")
    names = [one.name for one in pkgutil.walk_packages(package.__path__, f"paceline.{room}.")]
    return [importlib.import_module(name) for name in names]


def own(module, is_wanted):
    return [one for one in vars(module).values() if is_wanted(one) and one.__module__ == module.__name__]


def plainly(value):
    """Return a value in words, without where in memory it lies."""
    return re.sub(r" at 0x\w+", "", repr(value)) if isinstance(value, (*PLAIN, type(None))) else type(value).__name__


def defaults(function):
    found = inspect.signature(function).parameters.values()
    return {one.name: f"{one.kind.name}: {plainly(one.default)}" for one in found if one.default is not one.empty}


def record(kind):
    settings, keyword = (
        kind.__dataclass_params__,
        [one.name for one in kind.__dataclass_fields__.values() if one.kw_only],
    )
    return {"frozen": settings.frozen, "eq": settings.eq, "by keyword": keyword}


@pytest.mark.parametrize("room", ROOMS)
def test_constants_are_what_they_were(room):
    found = {
        f"{module.__name__}.{name}": plainly(value)
        for module in modules(room)
        for name, value in vars(module).items()
        if name.isupper() and name != "TYPE_CHECKING" and isinstance(value, PLAIN)
    }
    require_kept(KEPT, f"constants of {room}", found)


@pytest.mark.parametrize("room", ROOMS)
def test_defaults_are_what_they_were(room):
    taken = [one for module in modules(room) for one in own(module, inspect.isfunction)]
    kinds = [one for module in modules(room) for one in own(module, inspect.isclass)]
    taken += [one for kind in kinds for one in vars(kind).values() if inspect.isfunction(one)]
    found = {f"{one.__module__}.{one.__qualname__}": defaults(one) for one in taken}
    require_kept(KEPT, f"defaults of {room}", {name: one for name, one in found.items() if one})


@pytest.mark.parametrize("room", ROOMS)
def test_records_are_frozen_compared_and_made_by_keyword_as_they_were(room):
    kinds = [one for module in modules(room) for one in own(module, inspect.isclass)]
    found = {f"{one.__module__}.{one.__name__}": record(one) for one in kinds if hasattr(one, "__dataclass_params__")}
    require_kept(KEPT, f"records of {room}", found)
