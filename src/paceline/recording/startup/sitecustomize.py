"""Python runs this file at its start if `paceline record -- COMMAND` has put it first on the path.

In a worker started by torchrun, DistributedDataParallel is then recorded from its construction on, and any other model
from its first steps on. Afterwards this file runs the other file of this name, which Python would have run without it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # not imported from `typing`, which would slow the start of every Python process
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED = {"torch.nn.parallel.distributed": "watch_ddp", "torch.optim.optimizer": "watch_other_models"}
"""Modules of torch, and the function of ``paceline.recording.launch`` that is called once each was imported."""


class WatchedImport:
    """Finds a module of torch as usual, and starts the recording once it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's specification, with a loader that also starts the recording; None for other modules."""
        if name not in WATCHED:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                watch_if_possible(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch_if_possible(module: ModuleType) -> None:
    """Record what this module trains; if that fails, say so and leave the training alone."""
    try:
        if os.environ["PACELINE_HOME"] not in sys.path:
            sys.path.append(os.environ["PACELINE_HOME"])
        from paceline.recording import launch

        getattr(launch, WATCHED[module.__name__])(module, os.environ["PACELINE_RECORD"])
    except Exception as error:  # the training matters more than its record
        print(f"paceline: this worker is not recorded: {error!r}", file=sys.stderr)


def run_the_other() -> None:
    """Run the next file of this name on the path, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow the start of every Python
    others = [folder for folder in sys.path if os.path.abspath(folder) != own]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("PACELINE_RECORD") and os.environ.get("RANK"):
    sys.meta_path.insert(0, WatchedImport())
run_the_other()
