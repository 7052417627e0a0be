import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import backtest, barrier_overhead, leaderboard
from paceline.predictors import EWMA, LastValue, checks


class Oracle(LastValue):
    """Knows the speeds to come, as no honest predictor does: its covariates are the speeds themselves."""

    covariate_names = ("speed",)

    def forecast_speed(self, covariates_WD, horizon):
        return covariates_WD[:, 0]


class AlwaysOne(LastValue):
    def forecast_speed(self, covariates_WD, horizon):
        return np.ones(len(self.workers))


def named(name, trace):
    return Trace(trace.samples, trace.seconds, workers=trace.workers, meta={"job": name})


def of_speed(*speeds):
    speed_TW = np.array(speeds, dtype=float).T
    return Trace(np.ones_like(speed_TW), 1 / speed_TW)


def test_baseline_has_ratio_one():
    board = leaderboard({}, [checks.example_trace()])
    table = board.overall
    assert repr(board) == "Leaderboard(traces=1, rmse over the last value: last-value 1.000)"
    assert table["predictor"].tolist() == ["last-value"]
    assert table.loc[0, ["rmse", "mae", "worst"]].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_ratios_are_geometric_means():
    traces = [named(f"job {seed}", checks.example_trace(seed=seed)) for seed in (1, 2)]
    board = leaderboard({"ewma": EWMA()}, traces)
    ratios = np.concatenate([backtest(EWMA(), t).rmse / backtest(LastValue(), t).rmse for t in traces])
    row = board.overall.set_index("predictor").loc["ewma"]
    assert row["rmse"] == pytest.approx(np.exp(np.log(ratios).mean()))
    assert row["worst"] == pytest.approx(ratios.max())
    trace, worker = divmod(int(ratios.argmax()), 3)
    assert row["where"] == f"job {trace + 1}/{'abc'[worker]}"
    for i, trace in enumerate(("job 1", "job 2")):
        row = board.per_trace.set_index(["trace", "predictor"]).loc[(trace, "ewma")]
        assert row["rmse"] == pytest.approx(np.exp(np.log(ratios[3 * i : 3 * i + 3]).mean()))


@pytest.mark.slow
def test_constant_workers_left_out():
    varied = checks.example_trace()
    seconds = varied.seconds.copy()
    seconds[:, 1] = 0.5
    board = leaderboard({}, [Trace(varied.samples, seconds, workers=varied.workers)])
    assert board.workers["worker"].tolist() == ["a", "c"]
    assert board.left_out == ("trace/b",)
    with pytest.raises(ValueError, match="at least one worker whose speed changes"):
        leaderboard({}, [Trace(np.ones((60, 2)), np.ones((60, 2)))])


def test_a_ratio_computed_by_hand():
    # After a warm-up of one, the last value is off by 4, 4, 4. EWMA(.5) forecasts 4, 6, 5 and is off by 4, 2, 3.
    trace = of_speed([4.0, 8.0, 4.0, 8.0])
    row = leaderboard({"ewma": EWMA(smoothing=0.5)}, [trace], warmup=1).overall.set_index("predictor").loc["ewma"]
    assert row["rmse"] == pytest.approx(np.sqrt((16 + 4 + 9) / 3) / 4)
    assert row["mae"] == pytest.approx(3 / 4)


def test_worker_with_one_report_left_out():
    nan = np.nan
    board = leaderboard({}, [of_speed([1.0, 2.0, 1.0, 3.0], [1.0, 2.0, nan, nan])], warmup=1)
    assert board.left_out == ("trace/1",)


@pytest.mark.slow
def test_traces_scored_independently():
    noisy, steady = (named(f"job {seed}", checks.example_trace(seed=seed)) for seed in (1, 2))
    both = leaderboard({"ewma": EWMA()}, [noisy, steady]).per_trace
    alone = leaderboard({"ewma": EWMA()}, [steady]).per_trace
    scores = [name for name in alone.columns if name != "microseconds"]
    assert both.loc[both["trace"] == "job 2", scores].to_numpy().tolist() == alone[scores].to_numpy().tolist()


@pytest.mark.slow
def test_names_and_paths_refused_with_hint():
    trace = checks.example_trace()
    with pytest.raises(TypeError, match=r"named\('ewma'\) creates one"):
        leaderboard({"e": "ewma"}, [trace])
    with pytest.raises(
        TypeError, match=r"must be a Trace, got an object of str: read a file with paceline\.datasets\.read_traces"
    ):
        leaderboard({"e": EWMA()}, ["a.parquet"])
    assert leaderboard({"e": EWMA()}, trace).overall["rmse"].equals(leaderboard({"e": EWMA()}, [trace]).overall["rmse"])


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="traces must have different names, got 'example' twice"):
        leaderboard({}, [checks.example_trace(seed=1), checks.example_trace(seed=2)])


def test_baseline_name_is_reserved():
    with pytest.raises(ValueError, match=r"the name 'last-value' is the baseline's, got EWMA"):
        leaderboard({"last-value": EWMA()}, [checks.example_trace()])


@pytest.mark.slow
def test_overhead_is_mean_over_jobs():
    traces = [named(f"job {seed}", checks.example_trace(seed=seed)) for seed in (1, 2)]
    board = leaderboard({"ewma": EWMA()}, traces)
    row = board.overall.set_index("predictor").loc["ewma"]
    results = [backtest(EWMA(), trace) for trace in traces]
    by_hand = [barrier_overhead(r.forecast_TW[50:], r.actual_TW[50:]) for r in results]
    assert row["overhead"] == pytest.approx(np.mean(by_hand))
    assert board.jobs["microseconds"].gt(1).all()


@pytest.mark.slow
def test_overhead_ignores_common_level():
    class Half(Oracle):
        def forecast_speed(self, covariates_WD, horizon):
            return 0.5 * covariates_WD[:, 0]

    trace = checks.example_trace()
    seeing = Trace(trace.samples, trace.seconds, covariates=trace.speed[:, :, None], covariate_names=["speed"])
    row = leaderboard({"half": Half()}, [seeing]).overall.set_index("predictor").loc["half"]
    assert row["rmse"] > 1
    assert row["overhead"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_per_trace_is_best_first():
    traces = [named(f"job {seed}", checks.example_trace(seed=seed)) for seed in (3, 1, 2)]
    table = leaderboard({"ewma": EWMA(), "always one": AlwaysOne()}, traces).per_trace
    assert table["trace"].tolist() == sorted(table["trace"])
    assert table.index.tolist() == list(range(len(table)))
    for _, rows in table.groupby("trace"):
        assert rows["rmse"].tolist() == sorted(rows["rmse"])
