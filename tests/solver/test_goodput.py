"""The global batch of highest goodput, against trying all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Curves
from paceline.solver import best_batch, split


def fleet(seed, workers):
    rng = np.random.default_rng(seed)
    slope, intercept = rng.choice([0.0, 0.5, 1.0, 3.0], workers), rng.choice([0.0, 1.0, 20.0], workers)
    return Curves(rng.choice([0.0, 4.0, 30.0], workers) + 0.1, slope, intercept, rng.choice([9, 20, np.inf], workers))


def tried_all(curves, noise_scale, batches, **bounds):
    """The best goodput, up to a factor, and the smallest batch that has it."""
    goodput = {x: x / (noise_scale + x) / split(curves, x, **bounds).makespan for x in batches}
    best = max(goodput.values())
    return best, min(x for x, value in goodput.items() if value == best)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    workers=st.integers(1, 4),
    noise_scale=st.sampled_from([0.0, 1.0, 10.0, 100.0, 1e6]),
    batch_multiple=st.sampled_from([1, 2, 5]),
    comm=st.sampled_from([0.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_batch_has_the_highest_goodput(seed, workers, noise_scale, batch_multiple, comm):
    curves = fleet(seed, workers)
    room = int(np.minimum(np.floor(curves.limit / batch_multiple) * batch_multiple, 60).sum())
    batches = range(batch_multiple, min(room, 60) // batch_multiple * batch_multiple + 1, batch_multiple)
    chosen = best_batch(curves, noise_scale, smallest=1, largest=batches[-1], batch_multiple=batch_multiple, comm=comm)
    best, batch = tried_all(curves, noise_scale, batches, batch_multiple=batch_multiple, comm=comm)
    assert chosen.global_batch == batch
    assert chosen.goodput == pytest.approx(best * (noise_scale + 1))
    assert chosen.split.sizes.sum() == batch


@pytest.mark.slow
def test_noisier_gradients_ask_for_larger_batches():
    curves = Curves(np.array([0.2, 0.1]), np.array([0.001, 0.002]), np.array([0.1, 0.05]), np.full(2, np.inf))
    batches = [best_batch(curves, n, smallest=8, largest=2048).global_batch for n in (0, 10, 100, 1000, 1e5)]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]


def test_reference_only_changes_the_unit():
    curves = Curves.from_speed(np.array([100.0, 200.0]))
    one, other = (best_batch(curves, 50.0, smallest=10, largest=99, reference=r) for r in (10, 60))
    assert one.global_batch == other.global_batch == 12, (
        "100 and 200 samples/s split 12 evenly, and no larger batch gains"
    )
    assert other.goodput / one.goodput == pytest.approx(110 / 60)
    assert one.efficiency == pytest.approx(60 / 62)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"noise_scale": -1.0}, "noise_scale must be finite and not negative"),
        ({"noise_scale": np.nan}, "noise_scale must be finite"),
        ({"smallest": 0}, "smallest must be at least 1 sample, got 0"),
        (
            {"smallest": 9, "largest": 15, "batch_multiple": 8},
            "a multiple of batch_multiple 8 from smallest 9 to largest 15",
        ),
        ({"reference": 0}, "reference must be above 0 samples, got 0"),
        ({"lower": 40}, "lower.* sum to 80, more than the global_batch 64"),
        ({"upper": 2}, "the upper bounds and memory limits sum to 4, less than the global_batch 8"),
    ],
)
def test_wrong_argument_is_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        best_batch(Curves.from_speed(np.ones(2)), **{"noise_scale": 1.0, "smallest": 8, "largest": 64, **arguments})
