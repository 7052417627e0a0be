"""Python runs this file at its start in the processes of a script that is recorded or audited.

It calls functions of Paceline once certain modules of torch were imported, and runs the file of this name that Python
would have run without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # not imported from `typing`, which would slow the start of every Python process
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HOOKS = dict(pair.split("=") for pair in os.environ.get("PACELINE_HOOKS", "").split(",") if pair)
"""Modules of torch, and the function that is called with each once it was imported, as ``package.module:function``."""


class HookedImport:
    """Finds a module of torch as usual, and calls its function once it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's specification, with a loader that also calls the function; None for other modules."""
        if name not in HOOKS:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                call_hook(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def call_hook(module: ModuleType) -> None:
    """Call the function of a module; a recording that fails says so and leaves the training alone."""
    try:
        if os.environ["PACELINE_HOME"] not in sys.path:
            sys.path.append(os.environ["PACELINE_HOME"])
        place, _, function = HOOKS[module.__name__].partition(":")
        getattr(importlib.import_module(place), function)(module)
    except Exception as error:
        if "PACELINE_RECORD" not in os.environ:  # an audit has no result then
            raise
        print(f"paceline: this worker is not recorded: {error!r}", file=sys.stderr)


def run_next_sitecustomize() -> None:
    """Run the next file of this name on the path, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow the start of every Python
    others = [folder for folder in sys.path if os.path.abspath(folder) != own]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if HOOKS and ("PACELINE_RECORD" not in os.environ or os.environ.get("RANK")):  # only ranks are recorded
    sys.meta_path.insert(0, HookedImport())
run_next_sitecustomize()
