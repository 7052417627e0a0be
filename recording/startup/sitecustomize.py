"""Python runs this file as it starts, where `paceline collect -- COMMAND` puts it first on the path.

In a worker that torchrun started, DistributedDataParallel is then watched from its construction on. The file of this
name that Python would have run without it is run as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # as in `typing`, which is not loaded by every Python that starts
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow the start of every Python
DDP = "torch.nn.parallel.distributed"


class WatchedImport:
    """Finds the module of DistributedDataParallel as usual, and has it watched when it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's specification, with a loader that goes on to watch it; nothing for other modules."""
        if name != DDP:
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
    """Have DistributedDataParallel watched; where that fails, say so and leave the training alone."""
    try:
        sys.path.append(os.environ["PACELINE_HOME"])
        from paceline.recording.automatic import watch_every

        watch_every(module.DistributedDataParallel, os.environ["PACELINE_RECORD"])
    except Exception as error:  # the training matters more than its record
        print(f"paceline: this worker is not recorded: {error!r}", file=sys.stderr)


def run_the_other() -> None:
    """Run the file of this name that stands further down the path, if there is one."""
    others = [folder for folder in sys.path if os.path.abspath(folder) != HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("PACELINE_RECORD") and os.environ.get("RANK"):
    sys.meta_path.insert(0, WatchedImport())
run_the_other()
