"""What becomes of a loop when it is balanced: each shape of a loop is registered with its verdict."""

from collections.abc import Callable
from dataclasses import dataclass

SHAPES: list["Shape"] = []


@dataclass(frozen=True)
class Shape:
    """A loop, what becomes of it, and the words with which a refusal or a warning says so."""

    run: Callable
    verdict: str
    says: str = ""
    ranks: tuple[int, ...] = (2,)

    @property
    def name(self):
        return self.run.__name__.replace("_", " ")


def exact(run=None, *, ranks=(2,)):
    """The parameters equal those of one process on the same global batches."""

    def register(run):
        SHAPES.append(Shape(run, "exact", ranks=ranks))
        return run

    return register(run) if run else register


def refused(says):
    """Every rank ends with an error that says this."""

    def register(run):
        SHAPES.append(Shape(run, "refused", says))
        return run

    return register


def warned(says):
    """A rank warns, in a sentence that says this."""

    def register(run):
        SHAPES.append(Shape(run, "warned", says))
        return run

    return register
