"""What every check does to a predictor: all that it calls, in its order, and every number that it reports or asks for.

A predictor passes or fails by what it is asked. A question that is no longer asked would let a broken one pass.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from kept import require_kept

from paceline.predictors import EWMA, checks

KEPT = Path(__file__).with_name("questions.json")


def told(values):
    """Return how many numbers there are, how many of them are known, and a sum that knows their order."""
    if values is None:
        return None
    given = np.asarray(values, dtype=float).ravel()
    known_W = np.isfinite(given)
    return [
        len(given),
        int(known_W.sum()),
        float(np.where(known_W, given, 0.0).clip(-1e4, 1e4) @ np.arange(1.0, len(given) + 1.0)),
    ]


class WritesDown(EWMA):
    """An average that writes down whatever is asked of it or of its copies."""

    log: ClassVar[list] = []
    covariate_names = ("load", "other")

    def reset(self, workers):
        self.log.append((f"reset {' '.join(workers)}", []))
        super().reset(workers)

    def join(self, worker):
        self.log.append((f"join {worker}", []))
        super().join(worker)

    def leave(self, worker):
        self.log.append((f"leave {worker}", []))
        super().leave(worker)

    def rename(self, old, new):
        self.log.append((f"rename {old} {new}", []))
        super().rename(old, new)

    def observe(self, report):
        self.log.append(("observe", [told(report.samples), told(report.seconds), told(report.covariates)]))
        super().observe(report)

    def predict(self, covariates=None, *, horizon=1):
        self.log.append((f"predict {horizon} ahead", [told(covariates)]))
        return super().predict(covariates, horizon=horizon)

    def load_state_dict(self, state):
        self.log.append(("load", []))
        super().load_state_dict(state)

    def __getstate__(self):
        self.log.append(("copy or pickle", []))
        return self.__dict__


def in_short(log):
    """Return for each kind of call how many there were, the sum of their places in the order, and what was told."""
    found = {}
    for place, (what, given) in enumerate(log):
        numbers = [1, place, *(number for part in given for number in part or [0, 0, 0.0])]
        found[what] = np.add(found.get(what, 0.0), numbers)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.CHECKS)
def test_a_check_asks_what_it_always_asked(name):
    WritesDown.log.clear()
    checks.run(WritesDown, [name])
    require_kept(KEPT, name, in_short(WritesDown.log), rel=1e-5)


def test_a_fitted_predictor_was_fitted_to_the_example_alone_and_can_be_had_unfitted():
    class Fits(EWMA):
        lengths = ()

        def fit(self, traces):
            self.lengths = [(len(trace), told(trace.seconds)) for trace in traces]
            return self

    given = Fits()
    make = checks.fitted(given)
    assert given.lengths == make.unfitted().lengths == ()
    assert make().lengths == [(200, told(checks.example_trace().seconds))]
    assert make() is not make()
    assert make.unfitted() is not make.unfitted()
    assert make.unfitted() is not given


def test_the_example_is_kept():
    trace = checks.example_trace()
    found = {name: told(values) for name, values in vars(trace).items() if isinstance(values, np.ndarray)}
    require_kept(KEPT, "example", {**found, "meta": dict(trace.meta)})
    assert len(checks.example_trace(iterations=7)) == 7
