"""The lower bound of packed batches, as its parts are defined, one rank and one sample at a time."""

from itertools import product

import numpy as np
import pytest

from paceline.solver.assign_arguments import Fleet, Samples
from paceline.solver.lower_bounds import level, packed_bound


def drawn(seed):
    chance = np.random.default_rng(seed)
    ranks, count = int(chance.integers(1, 4)), int(chance.integers(3, 6))
    pace_W, fixed_W = chance.uniform(0.2, 2, ranks), chance.choice([0.0, 0.5, 3.0], ranks)
    floor_W = chance.choice([0.0, 0.0, 4.0], ranks)
    return np.sort(chance.uniform(0.1, 3, count))[::-1], Fleet(pace_W, fixed_W, floor_W), int(chance.integers(2))


def defined(cost_N, fleet, lower):
    """The longest samples on the fastest ranks; with ``lower``, the shortest on the slowest, and each rank alone."""
    fast, slow = sorted(fleet.pace), sorted(fleet.pace)[::-1]
    ranks, begin = min(len(fast), len(cost_N)), min(fleet.fixed)
    found = [level(fleet, sum(cost_N))]
    found += [begin + sum(cost_N[:k]) / sum(1 / one for one in fast[:k]) for k in range(1, ranks + 1)]
    if lower:
        short = cost_N[::-1]
        found += [begin + short[k] * slow[k] for k in range(len(slow))]
        found += [fixed + short[0] * pace for fixed, pace in zip(fleet.fixed, fleet.pace, strict=True)]
        found += list(fleet.floor)
    return max(found)


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_of_packed_batches_is_the_largest_of_its_parts_and_no_assignment_ends_before_it(seed):
    cost_N, fleet, lower = drawn(seed)
    bound = packed_bound(Samples(cost_N, np.ones(len(cost_N)), np.inf, lower=lower), fleet)
    assert bound == pytest.approx(defined(cost_N, fleet, lower), rel=1e-12)
    for owner_N in product(range(len(fleet)), repeat=len(cost_N)):
        if lower and len(set(owner_N)) < len(fleet):
            continue
        work_W = np.bincount(owner_N, cost_N, minlength=len(fleet))
        assert max(fleet.seconds(work_W)) >= bound * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_a_level_fleet_does_exactly_the_work_by_then(seed):
    cost_N, fleet, _ = drawn(seed)
    for work in (0.01, sum(cost_N), 100.0):
        ends = level(fleet, work)
        done = sum(max(ends - fixed, 0) / pace for fixed, pace in zip(fleet.fixed, fleet.pace, strict=True))
        assert done == pytest.approx(work, rel=1e-9)
