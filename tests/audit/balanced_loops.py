"""The loop shapes of ``tests/loops`` as cases of an audit."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))

import shapes  # noqa: F401 (registers them)
from cases import Case
from job import Job
from verdicts import SHAPES

from paceline.torch import attach


class Audited(Job):
    """A job that the audit runs: it attaches as a user does, and the audit says which sizes there are."""

    def attach(self, model, loader, **options):
        balance = attach(model, loader, **options)
        if balance not in self.balances:
            self.balances.append(balance)
        return balance


def of(shape):
    def run():
        job = Audited()
        try:
            shape.run(job)
        finally:
            job.close()

    return run


CASES = {
    shape.run.__name__: Case(of(shape), None, "", shape.name)
    for shape in SHAPES
    if shape.verdict.startswith("exact") and 2 in shape.ranks
}
