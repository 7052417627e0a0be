"""What becomes of a loop when it is balanced: each shape of a loop is registered with its verdict."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

SHAPES: list["Shape"] = []

TABLE_BEGINS = "<!-- the table of the tests: python tests/loops/renew.py -->"


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

    @property
    def sentence(self):
        ranks = f", {' and '.join(map(str, self.ranks))} ranks" if len(self.ranks) > 1 else ""
        return f"{self.verdict}{ranks}" if not self.says else f'{self.verdict}: "... {self.says} ..."'


def exact(run=None, *, ranks=(2,)):
    """The parameters equal those of one process on the same global batches."""

    def register(run):
        SHAPES.append(Shape(run, "exact", ranks=ranks))
        return run

    return register(run) if run else register


def refused(says, *, ranks=(2,)):
    """Every rank ends with an error that says this."""

    def register(run):
        SHAPES.append(Shape(run, "refused", says, ranks))
        return run

    return register


def warned(says, *, although_exact=False):
    """A rank warns, in a sentence that says this."""

    def register(run):
        SHAPES.append(Shape(run, "exact, but warned" if although_exact else "warned", says))
        return run

    return register


def table():
    """Return the table of all shapes, as it stands in the documentation."""
    lines = []
    for module in sorted({shape.run.__module__ for shape in SHAPES}):  # whatever was imported first
        heading = sys.modules[module].__doc__.strip().rstrip(".")
        lines += [f"### {heading}", "", "| loop | verdict |", "| --- | --- |"]
        lines += [f"| {shape.name} | {shape.sentence} |" for shape in SHAPES if shape.run.__module__ == module]
        lines.append("")
    return "\n".join(lines)
