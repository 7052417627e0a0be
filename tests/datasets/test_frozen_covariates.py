"""Covariates that stand still, against a slow definition and at each limit."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.frozen import frozen, sentence

NAN = float("nan")


def slow_frozen(rows):
    """How long the covariates of one worker stand still for much longer than they do otherwise."""
    runs = []
    for row in rows:
        if runs and np.array_equal(runs[-1][0], row, equal_nan=True):
            runs[-1][1] += 1
        else:
            runs.append([row, 1])
    lengths = [length for row, length in runs if np.isfinite(row).any()]
    if len(lengths) < 2:
        return 0
    usual = (sum(lengths) - max(lengths)) / (len(lengths) - 1)
    return sum(length for length in lengths if length >= max(20, 10 * usual))


@pytest.mark.slow
def test_covariates_stand_still_as_long_as_the_slow_definition_says():
    seen = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        workers = []
        for _ in range(3):
            runs = rng.choice([1, 1, 1, 2, 4, 19, 20, 21, 39, 40, 60], int(rng.integers(1, 8)))
            values = rng.choice([0.0, 1.0, NAN], (len(runs), 2)) + np.arange(len(runs))[:, None]
            workers.append(np.repeat(values, runs, axis=0))
        rows = max(map(len, workers))
        panel = np.stack([np.pad(one, ((0, rows - len(one)), (0, 0)), constant_values=NAN) for one in workers], axis=1)
        ones = np.ones((rows, 3))
        expected = {str(w): slow_frozen(panel[:, w]) for w in range(3)} if rows > 20 else {}
        found = frozen(Trace(ones, ones, covariates=panel, covariate_names=["x", "y"]))
        assert found == {name: length for name, length in expected.items() if length}, seed
        seen |= set(found.values())
    assert len(seen) > 5
    assert {type(length) for length in found.values()} <= {int}


@pytest.mark.parametrize(("still", "counts"), [(19, False), (20, True), (21, True)])
def test_a_stretch_counts_from_twenty_rows_and_ten_of_the_usual_ones_on(still, counts):
    for usual, factor in ((1, 1), (2, 1), (3, 2)):
        length = still if usual < 3 else 10 * usual - 20 + still
        values = np.repeat(np.arange(9.0), [usual] * 8 + [length])
        ones = np.ones((len(values), 1))
        found = frozen(Trace(ones, ones, covariates=values[:, None, None], covariate_names=["x"]))
        assert found == ({"0": length} if counts else {}), (usual, factor)


def test_five_workers_are_named_and_the_others_counted():
    rows = {name: number for number, name in enumerate("abcdefg", start=20)}
    told = "all covariates stand still for " + ", ".join(f"{n} iterations of {name}" for name, n in rows.items())
    assert sentence(dict(list(rows.items())[:5])) == told.split(", 25 ")[0]
    assert sentence(rows) == told.split(", 25 ")[0] + ", and others of 2 more workers"
    assert frozen(Trace([[1]] * 30, [[1]] * 30)) == {}
