"""What users call stays as it is, defaults too: a change of ``signatures.txt`` belongs into CHANGELOG."""

import importlib
import inspect
import pkgutil
import re
from enum import Enum
from pathlib import Path

import pytest
from kept import require_kept_text

import paceline

RECORD = Path(__file__).parent / "signatures.txt"


def public():
    """Yield the names of what modules export, with the objects; one that several export comes once."""
    seen = set()
    for module in sorted(
        {"paceline", *(found.name for found in pkgutil.walk_packages(paceline.__path__, "paceline."))}
    ):
        if module.endswith("__main__") or "flower" in module or "ray" in module:  # need libraries of their own
            continue
        for name in getattr(importlib.import_module(module), "__all__", ()):
            held = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(held) and (not callable(held) or held not in seen):
                seen.add(held) if callable(held) else None
                yield f"{module}.{name}", held


def lines(name, held):
    """Yield a line for a function or a constant, and one for each public method of a class."""
    if not (inspect.isfunction(held) or inspect.isclass(held)):
        if isinstance(held, str | int | float | tuple | frozenset) and not name.endswith("__version__"):
            yield f"{name} = {held!r}"
        return
    if isinstance(held, type) and issubclass(held, Enum | Exception):
        yield f"{name}: {', '.join(held.__members__) if issubclass(held, Enum) else held.__mro__[1].__name__}"
        return
    yield f"{name}{signature(held)}"
    for method, found in sorted(vars(held).items() if isinstance(held, type) else ()):
        function = getattr(found, "__func__", found)
        if inspect.isfunction(function) and not method.startswith("_"):
            yield f"{name}.{method}{signature(function)}"


def signature(function):
    """Return the parameters with their defaults; mypy sees to the types."""
    found = inspect.signature(function)
    plain = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(plain)))


@pytest.mark.slow
def test_what_users_call_is_what_was_recorded():
    require_kept_text(RECORD, "".join(f"{line}\n" for one in public() for line in lines(*one)))
