"""Start an audit in a process of the script: Python imports this file by itself, as it stands first on the path.

The audit begins when the process imports torch, and not at all in one that does not. A ``sitecustomize`` of the user's
own is run as well.
"""

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any


class AfterTorch(MetaPathFinder):
    """Finds torch as it would be found, and begins the audit when it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's own spec, with a loader that begins the audit."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = BeginAudit(spec.loader)
        return spec


class BeginAudit(Loader):
    """Loads a module, and begins the audit."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        """Return what torch's own loader has."""
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module, and then begin the audit."""
        self.loader.exec_module(module)
        try:
            from paceline.audit.inside import begin
        except ImportError:  # another environment than the one that the audit runs in
            sys.path.append(os.environ["PACELINE_AUDIT_PATH"])
            from paceline.audit.inside import begin
        begin()


def run_next() -> None:
    """Run the file of this name that would have been found without this one."""
    for folder in sys.path:
        found = Path(folder or ".").resolve() / "sitecustomize.py"
        if found.parent != Path(__file__).resolve().parent and found.is_file():
            spec = importlib.util.spec_from_file_location("sitecustomize", found)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


if "PACELINE_AUDIT_PLAN" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
    run_next()
