"""The scheme that knows the true speeds is the fastest of all splits; errors may be numbers of any precision."""

import itertools

import numpy as np
import pytest

from paceline.eval.replay.synchronous_schemes import Oracle
from paceline.eval.significance import compare
from paceline.predictors import Curves


def all_splits(batch, workers):
    """Yield every split in which each worker takes a sample."""
    for cuts in itertools.combinations(range(1, batch), workers - 1):
        yield np.diff([0, *cuts, batch])


@pytest.mark.parametrize("has_curves", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_split_ends_before_that_of_the_true_speeds(seed, has_curves):
    rng = np.random.default_rng(seed)
    speed_TW, batch = rng.uniform(0.3, 3.0, (4, 3)), 14
    floor, slope, intercept = rng.uniform(0.0, 4.0, 3), rng.uniform(0.1, 1.0, 3), rng.uniform(0.0, 3.0, 3)
    curves = Curves(floor, slope, intercept, np.full(3, np.inf)) if has_curves else None
    scheme = Oracle(speed_TW, curves)
    scheme.reset(["a", "b", "c"], batch)

    def makespan(sizes, speed_W):
        usual = np.maximum(floor, intercept + slope * sizes) if has_curves else sizes
        return (usual / speed_W).max()

    for k, speed_W in enumerate(speed_TW):
        sizes = scheme.sizes(k, None)
        assert sizes.sum() == batch
        least = min(makespan(other, speed_W) for other in all_splits(batch, 3))
        assert makespan(sizes, speed_W) == pytest.approx(least, rel=1e-12)


def test_a_memory_limit_of_the_curves_holds_for_the_true_speeds_too():
    scheme = Oracle(np.array([[100.0, 1.0]]), Curves(np.zeros(2), np.ones(2), np.zeros(2), np.array([4.0, np.inf])))
    scheme.reset(["a", "b"], 10)
    assert scheme.sizes(0, None).tolist() == [4, 6]


@pytest.mark.parametrize("kind", [np.float32, np.float16, object])
def test_errors_of_any_type_are_compared_in_full_precision(kind):
    rng = np.random.default_rng(0)
    error, other = (rng.normal(size=(60, 2)).astype(np.float16) for _ in range(2))
    wanted = compare(error.astype(np.float64), other.astype(np.float64))
    assert compare(error.astype(kind), other.astype(np.float64)) == wanted
    assert compare(error.astype(np.float64), other.astype(kind)) == wanted
