"""The cases of the corpus: each a thread that reported a bug, its mechanism, the bug as a small script, and its fix."""

from collections.abc import Callable
from dataclasses import dataclass

CASES: dict[str, "Case"] = {}


@dataclass(frozen=True)
class Case:
    """One small script: what becomes of it, and why."""

    run: Callable
    cause: str | None
    thread: str
    mechanism: str


def bug(cause, thread):
    """Register a bug: its docstring is the mechanism."""

    def register(run):
        CASES[f"{run.__module__}.{run.__name__}"] = Case(run, cause, thread, " ".join(run.__doc__.split()))
        return run

    return register


def fix(of):
    """Register the fix of a bug."""

    def register(run):
        known = CASES[f"{of.__module__}.{of.__name__}"]
        CASES[f"{run.__module__}.{of.__name__}, fixed"] = Case(run, None, known.thread, known.mechanism)
        return run

    return register
