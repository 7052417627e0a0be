import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import backtest, iter_backtest, leaderboard
from paceline.predictors import EWMA, KINDS, NARX, LastValue, Training, checks
from paceline.training import fit

FITTED = [
    fit(NARX(lags=3, training=Training(epochs=2)), [checks.example_trace()]) if kind is NARX else kind()
    for kind in KINDS
]


def poisoned(trace: Trace, k: int) -> Trace:
    """The same trace, with everything that is measured in iteration k or later replaced by garbage."""
    seconds, drivers = trace.seconds.copy(), trace.drivers.copy()
    seconds[k:] = np.random.default_rng(k).uniform(1e-3, 1e3, seconds[k:].shape)
    drivers[k + 1 :] = 1e6  # the drivers of boundary k are sampled before iteration k, so they may be seen
    return Trace(trace.samples, seconds, drivers=drivers, driver_names=trace.driver_names, workers=trace.workers)


@pytest.mark.parametrize("predictor", FITTED, ids=lambda predictor: type(predictor).__name__)
@pytest.mark.parametrize("k", [1, 7, 30])
def test_no_forecast_looks_ahead(predictor, k):
    trace = checks.example_trace(60, seed=4)
    clean = [step.forecast for step in iter_backtest(predictor, trace)]
    other = [step.forecast for step in iter_backtest(predictor, poisoned(trace, k))]
    for before, after in zip(clean[: k + 1], other[: k + 1], strict=True):
        np.testing.assert_array_equal(before.speed, after.speed)
        np.testing.assert_array_equal(before.spread, after.spread)
    assert any((a.speed != b.speed).any() for a, b in zip(clean[k + 1 :], other[k + 1 :], strict=True))


def test_drivers_are_those_of_the_boundary_before_the_iteration():
    seen = []

    class Watches(LastValue):
        driver_names = ("cpu_busy",)

        def predict(self, drivers=None, *, horizon=1):
            seen.append(("predict", drivers.item()))
            return super().predict(drivers, horizon=horizon)

        def observe(self, report):
            seen.append(("observe", report.drivers.item()))
            super().observe(report)

    trace = Trace([[1]] * 2, [[1]] * 2, drivers=[[[0.25]], [[0.75]]], driver_names=["cpu_busy"])
    list(iter_backtest(Watches(), trace))
    assert seen == [("predict", 0.25), ("observe", 0.25), ("predict", 0.75), ("observe", 0.75)]


def test_scores_are_those_computed_by_hand_and_leave_the_warmup_and_gaps_out():
    trace = Trace(samples=[[6], [6], [6], [6]], seconds=[[1.0], [2.0], [np.nan], [6.0]])  # speeds 6, 3, -, 1
    result = backtest(LastValue(), trace, warmup=1)
    np.testing.assert_allclose(result.mae, [(3 + 2) / 2])
    np.testing.assert_allclose(result.rmse, [np.sqrt((9 + 4) / 2)])


def test_a_worker_that_never_reported_has_no_score():
    trace = Trace(samples=[[6, 6]] * 3, seconds=[[1.0, np.nan]] * 3)
    assert np.isnan(backtest(LastValue(), trace, warmup=0).rmse[1])


def test_an_interval_that_is_always_wide_enough_covers_everything():
    class Unsure(LastValue):
        def predict(self, drivers=None, *, horizon=1):
            forecast = super().predict(drivers, horizon=horizon)
            return type(forecast)(forecast.speed, np.full(len(self.workers), np.inf))

    assert (backtest(Unsure(), checks.example_trace()).coverage == 1.0).all()


@pytest.mark.parametrize("warmup", [-1, 3, 10])
def test_a_warmup_that_leaves_nothing_is_refused(warmup):
    with pytest.raises(ValueError, match="warmup must be at least 0 and below the 3 iterations"):
        backtest(LastValue(), Trace([[1]] * 3, [[1]] * 3), warmup=warmup)


def test_the_yardstick_has_ratio_one_and_is_always_there():
    table = leaderboard({}, [checks.example_trace()]).overall
    assert table["predictor"].tolist() == ["last-value"]
    assert table.loc[0, ["rmse", "mae", "worst"]].tolist() == [1.0, 1.0, 1.0]


def test_ratios_are_geometric_means_over_workers_and_name_the_worst():
    traces = [checks.example_trace(seed=seed) for seed in (1, 2)]
    board = leaderboard({"ewma": EWMA()}, traces)
    ratios = np.concatenate([backtest(EWMA(), t).rmse / backtest(LastValue(), t).rmse for t in traces])
    row = board.overall.set_index("predictor").loc["ewma"]
    assert row["rmse"] == pytest.approx(np.exp(np.log(ratios).mean()))
    assert row["worst"] == pytest.approx(ratios.max())
    assert len(board.per_trace) == 2


def test_workers_of_constant_speed_are_left_out():
    varied = checks.example_trace()
    seconds = varied.seconds.copy()
    seconds[:, 1] = 0.5
    board = leaderboard({}, [Trace(varied.samples, seconds, workers=varied.workers)])
    assert board.workers["worker"].tolist() == ["a", "c"]
    with pytest.raises(ValueError, match="at least one worker whose speed changes"):
        leaderboard({}, [Trace(np.ones((60, 2)), np.ones((60, 2)))])
