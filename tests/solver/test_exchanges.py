"""The search for better packed batches: it ends near the bound, and otherwise where no exchange of two ranks helps."""

import numpy as np
import pytest

from paceline.solver import assign
from paceline.solver.assign import ENOUGH
from paceline.solver.assign_arguments import Fleet, Samples
from paceline.solver.lower_bounds import packed_bound
from paceline.solver.packed import packed


def makespan(samples, fleet, owner_N):
    return max(fleet.seconds(np.bincount(owner_N, samples.costs, minlength=len(fleet))))


@pytest.mark.slow
def test_exchanges_end_once_the_makespan_is_close_to_the_bound():
    chance = np.random.default_rng(3)
    fleet = Fleet(1 / np.array([1.0, 0.7, 0.5]), np.zeros(3), np.zeros(3))
    met = set()
    for count in range(9, 69):
        cost_N = np.sort(chance.lognormal(0, 0.5, count))[::-1]
        samples = Samples(cost_N, cost_N, np.inf, 1)
        bound = packed_bound(samples, fleet) * (1 + ENOUGH)
        begun, done = packed(samples, fleet, np.inf), packed(samples, fleet, 0.0)
        found = assign(cost_N, [1.0, 0.7, 0.5])
        near = makespan(samples, fleet, begun) <= bound
        met.add((near, makespan(samples, fleet, done) < makespan(samples, fleet, begun)))
        if near:
            assert found.owner.tolist() == begun.tolist()
        elif found.makespan > bound:
            assert found.owner.tolist() == done.tolist()
    assert met >= {(True, True), (False, True)}
