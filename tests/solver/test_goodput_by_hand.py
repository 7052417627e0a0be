"""The choice of a global batch by hand, what its arguments mean where they are left out, and how little is tried."""

import importlib

import numpy as np
import pytest

from paceline.predictors import Curves
from paceline.solver import best_batch, split

goodput = importlib.import_module("paceline.solver.goodput")
TWO = Curves(np.zeros(2), np.array([0.01, 0.02]), np.array([1.0, 0.5]), np.full(2, np.inf))


def counted(monkeypatch):
    tried = []
    monkeypatch.setattr(goodput, "split", lambda *given, **rest: tried.append(given[1]) or split(*given, **rest))
    return tried


def test_what_is_left_out_costs_nothing_and_bounds_nothing():
    for smallest in (1, 7):
        left_out = best_batch(TWO, 40.0, smallest=smallest, largest=99)
        named = {"reference": smallest, "batch_multiple": 1, "lower": 0, "upper": None, "comm": 0.0, "overlap": 1.0}
        told = best_batch(TWO, 40.0, smallest=smallest, largest=99, **named)
        assert (left_out.global_batch, left_out.goodput) == (told.global_batch, told.goodput)
        assert left_out.split.seconds.tolist() == told.split.seconds.tolist()
    one = best_batch(TWO, 0.0, smallest=1, largest=1)
    assert one.split.sizes.tolist() == [0, 1]
    assert (one.split.makespan, one.efficiency, one.goodput) == (0.52, 1.0, 1 / 0.52)


def test_communication_and_its_overlap_are_those_of_the_split():
    for overlap, makespan in ((1, 5.5), (2, np.hypot(2.5, 3.0)), (np.inf, 3.0)):
        chosen = best_batch(TWO, 10.0, smallest=250, largest=250, comm=3.0, overlap=overlap)
        plan = split(TWO, 250, comm=3.0, overlap=overlap)
        assert chosen.split.makespan == plan.makespan == pytest.approx(makespan, rel=1e-3)
        assert chosen.goodput == pytest.approx(250 / plan.makespan)


def test_progress_is_throughput_times_the_progress_of_a_sample_against_the_reference():
    chosen = best_batch(Curves.from_speed(np.array([100.0])), 50.0, smallest=10, largest=10, reference=30)
    assert (chosen.global_batch, chosen.efficiency) == (10, 80.0 / 60.0)
    assert chosen.goodput == pytest.approx(100.0 * 80.0 / 60.0)
    tiny = best_batch(Curves.from_speed(np.array([100.0])), 50.0, smallest=10, largest=10, reference=0.5)
    assert tiny.efficiency == 50.5 / 60.0


def test_of_equally_good_batches_the_smallest_is_taken():
    """Times in proportion to samples, and a noise scale of 0: the goodput of a batch falls as it grows."""
    straight = Curves.from_speed(np.array([100.0, 100.0]))
    assert best_batch(straight, 0.0, smallest=2, largest=64).global_batch == 2
    level = Curves(np.ones(1), np.zeros(1), np.zeros(1), np.full(1, np.inf))
    assert best_batch(level, 0.0, smallest=3, largest=64).global_batch == 3
    assert best_batch(level, 1.0, smallest=3, largest=64).global_batch == 64


@pytest.mark.parametrize(("step", "most"), [(8, 60), (1, 60)])
def test_a_few_dozen_splits_are_usual(step, most, monkeypatch):
    tried, rng = counted(monkeypatch), np.random.default_rng(1)
    curves = Curves(rng.uniform(0.05, 0.2, 8), rng.uniform(0.001, 0.004, 8), rng.uniform(0, 0.05, 8), np.full(8, 512.0))
    best_batch(curves, 700.0, smallest=64, largest=8192, batch_multiple=step)
    assert len(tried) == len(set(tried)) <= most, "none is computed twice"
    assert min(tried) == 64
    assert max(tried) == 4096, "there is no memory for more"
    assert all(batch % step == 0 for batch in tried)


def test_where_the_ends_are_the_best_little_else_is_tried(monkeypatch):
    tried = counted(monkeypatch)
    assert best_batch(TWO, 0.0, smallest=10, largest=10_000, comm=50.0).global_batch == 10
    assert len(tried) <= 15
    tried.clear()
    assert best_batch(TWO, 1e9, smallest=10, largest=10_000, comm=50.0).global_batch == 10_000
    assert len(tried) <= 30


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"noise_scale": np.inf}, "noise_scale must be finite and not negative, in samples, got inf"),
        ({"smallest": 0}, "smallest must be at least 1 sample, got 0"),
        ({"smallest": np.nan}, "smallest must be at least 1 sample, got nan"),
        ({"largest": 0}, "largest must be at least 1 sample, got 0"),
        ({"largest": 7}, "a multiple of batch_multiple 1 from smallest 8 to largest 7"),
        ({"batch_multiple": 0}, "batch_multiple must be at least 1 sample, got 0"),
        ({"reference": -1.0}, "reference must be above 0 samples, got -1"),
        ({"reference": np.nan}, "reference must be above 0 samples, got nan"),
        ({"lower": [np.nan, 0]}, "lower must be finite and not negative, got nan for worker 0"),
        ({"upper": [0, 0]}, "the upper bounds and memory limits sum to 0, less than the global_batch 1"),
        ({"upper": 3, "lower": 2, "smallest": 9}, "the upper bounds and memory limits sum to 6"),
        ({"lower": [40, 40], "largest": 64}, "the lower bounds sum to 80, more than the global_batch 64"),
    ],
)
def test_what_leaves_no_choice_is_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        best_batch(TWO, **{"noise_scale": 1.0, "smallest": 8, "largest": 64, **arguments})


def test_a_range_may_begin_and_end_at_a_single_sample_or_multiple():
    assert best_batch(TWO, 1.0, smallest=1, largest=1).global_batch == 1
    assert best_batch(TWO, 1e9, smallest=5, largest=11, batch_multiple=4).global_batch == 8
    assert best_batch(TWO, 1e9, smallest=8, largest=12, batch_multiple=4).global_batch == 12
    assert best_batch(TWO, 0.0, smallest=8, largest=12, batch_multiple=4).global_batch in {8, 12}
    with pytest.raises(ValueError, match="a multiple of batch_multiple 4 from smallest 5 to largest 7"):
        best_batch(TWO, 1.0, smallest=5, largest=7, batch_multiple=4)
