"""Trees: the walk of each row, node by node; what is joined; what a state of trees may hold. And what they see."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Boosting, Report
from paceline.predictors.trees import boosting
from paceline.predictors.trees.forest import Trees


def random_trees(seed, trees=3, depth=3, inputs=4):
    """Return trees of random shape, whose leaves point to themselves."""
    rng, nodes, roots = np.random.default_rng(seed), [], []

    def grown(left):
        at = len(nodes)
        nodes.append(None)
        if not left or rng.random() < 0.25:
            nodes[at] = (0, np.inf, False, at, at, rng.normal())
            return at, 0
        (one, a), (other, b) = grown(left - 1), grown(left - 1)
        threshold = np.inf if rng.random() < 0.2 else rng.normal()
        nodes[at] = (rng.integers(inputs), threshold, rng.random() < 0.5, one, other, 0.0)
        return at, 1 + max(a, b)

    deepest = 0
    for _ in range(trees):
        root, steps = grown(depth)
        roots.append(root)
        deepest = max(deepest, steps)
    feature, threshold, right, left_child, right_child, value = zip(*nodes, strict=True)
    return Trees(
        np.array(feature, dtype=np.int64),
        np.array(threshold),
        np.array(right),
        np.stack([left_child, right_child], axis=1),
        np.array(value),
        np.array(roots),
        np.array(deepest),
        np.array(rng.normal()),
    )


def walked(trees, row):
    total = float(trees.baseline)
    for node in trees.root_G:
        while node not in trees.child_N2[node]:
            seen = row[trees.feature_N[node]]
            right = trees.missing_right_N[node] if np.isnan(seen) else seen > trees.threshold_N[node]
            node = trees.child_N2[node][int(right)]
        total += trees.value_N[node]
    return total


@given(st.integers(0, 999), st.booleans(), st.integers(0, 4))
@settings(max_examples=60)
def test_row_walk_threshold_and_missing(seed, gaps, rows):
    trees, rng = random_trees(seed), np.random.default_rng(seed + 1)
    inputs_WF = rng.normal(size=(rows, 4))
    inputs_WF[rng.random(inputs_WF.shape) < 0.3 * gaps] = np.nan
    exact = rng.random(inputs_WF.shape) < 0.3  # exactly at a threshold goes left
    inputs_WF[exact] = np.where(np.isfinite(trees.threshold_N), trees.threshold_N, 1e300)[
        rng.integers(len(trees.value_N))
    ]
    np.testing.assert_allclose(trees(inputs_WF), [walked(trees, row) for row in inputs_WF], atol=1e-12)
    others = random_trees(seed + 7, trees=2, depth=4)
    both = trees.followed_by(others)
    np.testing.assert_allclose(both(inputs_WF), trees(inputs_WF) + others(inputs_WF), atol=1e-12)
    assert both.steps == max(trees.steps, others.steps)
    assert both.root_G.tolist() == [*trees.root_G, *(others.root_G + len(trees.value_N))]
    again = Trees.from_arrays({n: np.atleast_1d(v) for n, v in both.arrays().items()})
    assert (again.steps.shape, again.baseline.shape) == ((), ())
    for name, array in both.arrays().items():
        np.testing.assert_array_equal(getattr(again, name), array)


NODES = len(random_trees(1).value_N)


@pytest.mark.parametrize(
    ("name", "at", "value", "says"),
    [
        ("feature_N", 0, 2**31, "feature_N must hold whole numbers from 0 to 2147483647"),
        ("feature_N", 0, -1, "feature_N must hold whole numbers from 0 to 2147483647"),
        ("child_N2", (0, 1), NODES, f"child_N2 must hold whole numbers from 0 to {NODES - 1}"),
        ("child_N2", (0, 0), -1, f"child_N2 must hold whole numbers from 0 to {NODES - 1}"),
        ("root_G", 0, NODES, f"root_G must hold whole numbers from 0 to {NODES - 1}"),
        ("steps", (), 1000, "steps must hold whole numbers from 0 to 999"),
        ("steps", (), -1, "steps must hold whole numbers from 0 to 999"),
    ],
)
def test_state_with_missing_nodes_refused(name, at, value, says):
    arrays = {n: np.array(v) for n, v in random_trees(1).arrays().items()}
    allowed = arrays[name].copy()
    allowed[at] = max(value - 1, 0)
    Trees.from_arrays(arrays | {name: allowed})
    broken = arrays[name].copy()
    broken[at] = value
    with pytest.raises(ValueError, match=f"^{says}$"):
        Trees.from_arrays(arrays | {name: broken})
    with pytest.raises(ValueError, match=f"^{name} must hold whole numbers"):
        Trees.from_arrays(arrays | {name: arrays[name].astype(float)})
    Trees.from_arrays(arrays | {name: arrays[name].astype(np.uint32)})


# -- what the trees see --------------------------------------------------------------------------------------------


class Seen:
    """Trees that note their inputs, and forecast so many scales of change."""

    def __init__(self, change=0.0):
        self.change, self.inputs = change, []

    def __call__(self, inputs_WF):
        self.inputs.append(inputs_WF)
        return np.full(len(inputs_WF), self.change)


def by_hand(speeds, covariates, lags, covariate_lags):
    """Return one worker's inputs after these speeds (NaN where it did not report), and its scale and last log."""
    logs, averages, scale = [], [np.nan] * 4, np.nan
    for speed in speeds:
        if np.isnan(speed):
            continue
        log = np.log(speed)
        if logs:
            change = abs(log - logs[0])
            scale = change if np.isnan(scale) else scale + 0.05 * (change - scale)
        rates = (0.5, 0.25, 0.1, 0.03)
        averages = [log if np.isnan(a) else a + r * (log - a) for a, r in zip(averages, rates, strict=True)]
        logs.insert(0, log)
    scale = max(scale, 1e-3) if np.isfinite(scale) else 1e-3
    lagged = (logs + [np.nan] * lags)[:lags]
    past = [*covariates[::-1], *[np.full(len(covariates[0]), np.nan)] * (covariate_lags + 1)][: covariate_lags + 1]
    return (
        [(value - lagged[0]) / scale for value in (*lagged[1:], *averages)] + [x for row in past for x in row],
        scale,
        lagged[0],
    )


@pytest.mark.parametrize(("lags", "covariate_lags"), [(2, 0), (3, 1), (5, 3)])
def test_inputs_are_scaled_lags_and_covariates(lags, covariate_lags):
    rng = np.random.default_rng(lags)
    speed_TW, covariates_TWD = rng.uniform(1, 4, (9, 2)), rng.normal(size=(10, 2, 2))
    speed_TW[rng.random((9, 2)) < 0.25] = np.nan
    covariates_TWD[rng.random((10, 2, 2)) < 0.2] = np.nan
    model = Boosting(lags=lags, covariate_lags=covariate_lags, covariates=["x", "y"])
    model.trees_ = Seen(0.7)
    model.reset(["a", "b"])
    for k in range(9):
        found = model.predict(covariates=covariates_TWD[k])
        if k:
            for w in range(2):
                inputs, scale, last = by_hand(speed_TW[:k, w], covariates_TWD[: k + 1, w], lags, covariate_lags)
                np.testing.assert_allclose(model.trees_.inputs[-1][w], inputs, atol=1e-9)
                if np.isfinite(last):
                    assert np.log(found.speed[w]) == pytest.approx(last + 0.7 * scale)
        model.observe(Report(speed_TW[k], np.where(np.isnan(speed_TW[k]), np.nan, 1.0), covariates=covariates_TWD[k]))


def test_forecasts_ahead_feed_back():
    one, other = (
        Boosting(lags=3, covariates=["x"], covariate_lags=2),
        Boosting(lags=3, covariates=["x"], covariate_lags=2),
    )
    for model in (one, other):
        model.trees_ = Seen(0.4)
        model.reset(["a"])
        for k, speed in enumerate((2.0, 3.0, 2.5)):
            model.observe(Report([speed], [1.0], covariates=[[0.1 * k]]))
    for horizon in (1, 2, 3):
        expected = one.predict(covariates=[[7.0]], horizon=horizon).speed
        found = other.predict(covariates=[[7.0]]).speed
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(other.trees_.inputs[-1], one.trees_.inputs[-1], atol=1e-12)
        other.observe(Report(found, [1.0], covariates=[[7.0]]))


@pytest.mark.parametrize(("change", "speed"), [(1e9, boosting.FASTEST), (-1e9, boosting.SLOWEST)])
def test_forecast_stays_within_speed_bounds(change, speed):
    model = Boosting(covariates=())
    model.trees_ = Seen(change)
    model.reset(["a"])
    model.observe(Report([2.0], [1.0]))
    assert model.predict().speed == pytest.approx([speed])
