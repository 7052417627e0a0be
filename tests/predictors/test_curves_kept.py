"""Batch time curves are those that were kept: fitted to measurements, and learnt report by report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kept import require_kept

from paceline.datasets import Trace
from paceline.predictors import BatchTime, Report
from paceline.predictors.batch_time import curve_fit
from paceline.predictors.batch_time.curve_fit import curve_seconds, fit_curve, nearness
from paceline.predictors.batch_time.device_curves import curves_of_profiles, curves_of_traces, median_curve
from paceline.predictors.batch_time.probing import probed

KEPT = Path(__file__).parent / "curves.json"
ALIKE = 5e-6


def measured(seed):
    """Return sizes, seconds and weights of a device that may have a floor, noise and outliers."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 13)) if seed % 5 else 40
    size_N = rng.permutation(2.0 ** rng.uniform(0, 10, count)).round() + np.arange(count)
    truth = (rng.choice([0.0, 0.4, 1.5]), 10.0 ** rng.uniform(-3, -1), rng.choice([0.0, 0.2, -0.02]))
    seconds_N = np.maximum(curve_seconds(truth, size_N), 1e-3) * np.exp(
        rng.normal(0, rng.choice([0.0, 0.02, 0.2]), count)
    )
    seconds_N[rng.random(count) < 0.15] *= rng.choice([0.1, 1.8, 6.0])
    return size_N, seconds_N, None if seed % 3 else 10.0 ** rng.uniform(-2, 1, count)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_curves_of_measurements_are_what_was_kept(first):
    found = {}
    for seed in range(first, first + 30):
        size_N, seconds_N, weight_N = measured(seed)
        if len(np.unique(size_N)) > 1:
            fit = fit_curve(size_N, seconds_N, weight_N)
            found[seed] = [*fit[:1], *curve_seconds(fit, [1.0, 30.0, 1000.0])]
    require_kept(KEPT, f"measurements {first}", found, rel=1e-5)


def test_nearness_falls_to_a_third_at_twice_or_half_the_batch_and_never_below_a_thousandth():
    assert nearness([50, 100, 200, 25, 1, 10**6], 100) == pytest.approx(
        [np.exp(-1), 1.0, np.exp(-1), np.exp(-4), 1e-3, 1e-3]
    )
    assert curve_fit.nearness([100 * 2**2.6], 100.0)[0] == pytest.approx(np.exp(-(2.6**2)))


def test_a_curve_rises_from_its_floor():
    assert curve_seconds((0.4, 0.01, 0.06), [33, 34, 35]).tolist() == [0.4, 0.4, pytest.approx(0.41)]


# -- devices -------------------------------------------------------------------------------------------------------


def varying(sizes, seconds, worker="a"):
    return Trace(np.array(sizes, dtype=float)[:, None], np.array(seconds, dtype=float)[:, None], workers=[worker])


def test_a_device_whose_sizes_differ_by_a_fifth_or_more_within_a_job_gets_a_curve():
    for factor, told in ((1.19, False), (1.2, True), (1.3, True)):
        sizes = np.array([10.0, 10.0 * factor, 10.0])
        curves = curves_of_traces([varying(sizes, 0.5 + 0.1 * sizes)], str)
        assert list(curves) == ["a"] * told
        if told:
            np.testing.assert_allclose(curves["a"], [0.0, 0.1, 0.5, np.inf, 5.0 + 5.0 * factor], rtol=1e-9)


def test_the_measurements_of_all_workers_of_a_type_and_of_all_jobs_that_tell_are_one_curve():
    """Each size counts once, with its median time; what was not measured counts not at all."""
    jobs = [
        varying([10, 20, 40, 40], [1.0, 2.0, np.nan, 0.0]),
        varying([20, 30, 20], [9.0, 3.0, 2.0], "b"),
        varying([50, 50], [1.0, 1.0]),  # of another model: its sizes tell nothing
    ]
    curve = curves_of_traces(jobs, lambda worker: "gpu")["gpu"]
    np.testing.assert_allclose(curve, [0.0, 0.1, 0.0, np.inf, 20.0], atol=1e-9)
    assert list(curves_of_traces(jobs, str)) == ["a", "b"]
    assert curves_of_traces(jobs[2:], str) == {}
    assert curves_of_traces([varying([8, 16], [np.nan, np.nan])], str) == {}


def profile(batches, seconds, device="gpu", **more):
    columns = {"source": "made", "device": device, "model": "net", "held": "", "comm_seconds": np.nan, **more}
    return pd.DataFrame({"batch": batches, "seconds": seconds, **columns})


@pytest.mark.slow
def test_a_profile_limits_the_batch_to_the_largest_that_worked_below_one_that_failed():
    free = curves_of_profiles(profile([8, 16, 32], [1.0, 1.8, 3.4]))["gpu"]
    np.testing.assert_allclose(free, [0.0, 0.1, 0.2, np.inf, 16.0], atol=1e-9)
    limited = curves_of_profiles(profile([8, 16, 32, 64], [1.0, 1.8, 3.4, np.nan]))["gpu"]
    np.testing.assert_allclose(limited, [0.0, 0.1, 0.2, 32.0, 16.0], atol=1e-9)
    between = curves_of_profiles(profile([8, 16, 24, 32], [1.0, 1.8, np.nan, 3.4]))["gpu"]
    assert between[3] == np.inf
    two = curves_of_profiles(pd.concat([profile([8, 16], [1.0, 1.8]), profile([8, 16], [2.0, 2.8], "cpu")]))
    assert list(two) == ["cpu", "gpu"]
    for column in ("source", "model", "held"):
        several = pd.concat([profile([8, 16], [1.0, 1.8]), profile([8, 16], [1.0, 1.8], **{column: "other"})])
        with pytest.raises(ValueError, match="profiles must hold one curve for each device, but 'gpu' has several"):
            curves_of_profiles(several)
    with pytest.raises(
        ValueError, match=r"^profiles of 'gpu' must hold two or more different batches, got \[100\. 119\.\]$"
    ):
        curves_of_profiles(profile([100, 119, 200], [1.0, 1.1, np.nan]))


def test_fitted_curves_are_near_where_they_are_asked_to_be():
    sizes = 2.0 ** np.arange(3, 12)
    bent = 0.01 * sizes**0.8
    for near, expected in ((None, None), (16.0, nearness(sizes, 16.0))):
        want = fit_curve(sizes, bent, expected)
        assert curves_of_profiles(profile(sizes, bent), near=near)["gpu"][:3].tolist() == list(want)
        assert curves_of_traces([varying(sizes, bent)], str, near=near)["a"][:3].tolist() == list(want)
        fitted = BatchTime(near=near).fit_profiles(profile(sizes, bent)).fit([varying(sizes, bent)])
        assert {name: curve[:3].tolist() for name, curve in fitted.curves_.items()} == {
            "gpu": list(want),
            "a": list(want),
        }


def test_an_unknown_device_is_expected_to_be_the_median_of_all_with_no_limit():
    rows = {"a": np.array([0.0, 1.0, 5.0, 7.0, 8.0]), "b": np.array([2.0, 3.0, 1.0, 9.0, 64.0]), "c": np.arange(5.0)}
    assert median_curve(rows).tolist() == [0.0, 1.0, 2.0, np.inf, 8.0]
    assert rows["a"][3] == 7.0
    assert median_curve({}).tolist() == [0.0, 1.0, 0.0, np.inf, 1.0]


# -- reports -------------------------------------------------------------------------------------------------------

FITTED = {
    "fitted floor": np.array([0.9, 0.012, 0.1, 400.0, 64.0]),
    "fitted line": np.array([0.0, 0.02, 0.3, np.inf, 50.0]),
}
KINDS = {
    "plain": BatchTime,
    "fitted": lambda: BatchTime(devices={"moved": "fitted floor", "noisy": "fitted line"}),
    "overlap": lambda: BatchTime(relative_speed="last-value", overlap=2.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_learnt_from_reports_is_what_was_kept(kind):
    """The whole memory of four workers: one moves far, one by little, one fails for memory, one is noisy."""
    model, rng, found = KINDS[kind](), np.random.default_rng(7), {}
    model.curves_ = dict(FITTED) if kind == "fitted" else {}
    model.reset(["moved", "still", "fails", "noisy"])
    for k in range(40):
        size_W = np.array([rng.choice([30, 60, 120, 240]), 64 + k % 3, 40 * (1 + k % 7), rng.integers(20, 90)]).astype(
            float
        )
        noise_W = np.array([0.01, 0.0005, 0.03, 0.2])
        seconds_W = np.maximum(0.8, 0.3 + 0.01 * size_W) * np.exp(rng.normal(0, noise_W))
        failed_W = np.array([False, False, size_W[2] >= 200 + (k > 20) * 40, k == 9])
        if k == 12:
            seconds_W[0] *= 30.0
        if k == 15:
            seconds_W[1], size_W[3] = np.nan, 0.0
        report = Report(
            size_W,
            np.where(failed_W, np.nan, seconds_W),
            comm_seconds=seconds_W * [0.3, 1.0 if k == 5 else 0.0, np.nan, 0.6],
            out_of_memory=failed_W if k % 3 else None,
        )
        model.observe(report)
        if k in (0, 1, 2, 4, 8, 16, 27, 39):
            forecast = model.predict(horizon=1 + k % 2)
            curves = forecast.curves
            found[k] = {
                **{name: value for name, value in model._rows.items() if value.ndim == 1},
                "wanted": model.wants_excitation.astype(int),
                "speed": forecast.speed,
                "spread": forecast.spread,
                "curves": [curves.floor, curves.slope, curves.intercept, curves.limit],
            }
    require_kept(KEPT, f"reports, {kind}", found, rel=1e-5)


def test_sizes_tried_are_what_was_kept():
    found = []
    for k in range(40):
        rng = np.random.default_rng(k)
        workers = int(rng.integers(1, 7))
        size_W, wanted_W = rng.integers(1, 200, workers), rng.random(workers) < 0.6
        low_W, high_W = np.maximum(size_W - rng.integers(0, 12, workers), 0), size_W + rng.integers(0, 12, workers)
        before = size_W.copy()
        tried = probed(
            size_W,
            wanted_W,
            low_W,
            high_W,
            amount=rng.choice([0.05, 0.3]),
            batch_multiple=int(rng.choice([1, 4])),
            iteration=k,
        )
        np.testing.assert_array_equal(size_W, before)
        assert tried.sum() == size_W.sum()
        assert (tried >= low_W).all()
        assert (tried <= high_W).all()
        found.append((tried - size_W).tolist())
    require_kept(KEPT, "tried", found)
