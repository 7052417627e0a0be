"""Tables and sentences of evaluations against slow definitions of each, and at the bounds from which they are said."""

import math
import re
from statistics import fmean

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.eval.leaderboard import BASELINE, Leaderboard
from paceline.eval.residuals import Residuals, position
from paceline.eval.significance import Estimate
from paceline.eval.worth import Worth, _on_fixed, _on_forecasts, _on_waiting, worth
from paceline.predictors import Forecast

MODELS, JOBS = (BASELINE, "b", "c"), {"j2": 3, "j1": 1, "j3": 2}


@pytest.fixture(scope="module")
def board():
    rng = np.random.default_rng(3)
    workers = [
        {"predictor": model, "trace": job, "worker": f"w{w}"}
        | dict(zip(("rmse", "mae", "coverage"), rng.uniform(0.5, 1.5, 3), strict=True))
        for model in MODELS
        for job, count in JOBS.items()
        for w in range(count)
    ]
    jobs = [
        {"predictor": model, "trace": job, "overhead": rng.random(), "microseconds": 100 * rng.random()}
        for model in MODELS
        for job in JOBS
    ]
    return Leaderboard(pd.DataFrame(workers), pd.DataFrame(jobs), (), {"b": 2.0})


def geometric(numbers):
    return math.exp(fmean(map(math.log, numbers)))


def rows_of(table, **wanted):
    return [row for row in table.to_dict("records") if all(row[name] == value for name, value in wanted.items())]


def summed_up(board, **chosen):
    """The row on a predictor, of one trace or of all."""
    workers, jobs = rows_of(board.workers, **chosen), rows_of(board.jobs, **chosen)
    worst = max(workers, key=lambda row: row["rmse"])
    return {
        "rmse": geometric([row["rmse"] for row in workers]),
        "mae": geometric([row["mae"] for row in workers]),
        "worst": worst["rmse"],
        "where": worst["worker"] if "trace" in chosen else f"{worst['trace']}/{worst['worker']}",
        "coverage": fmean(row["coverage"] for row in workers),
        "overhead": fmean(row["overhead"] for row in jobs),
        "microseconds": fmean(row["microseconds"] for row in jobs),
    }


def test_the_table_over_all_workers_holds_means_the_worst_and_the_best_first(board):
    wanted = sorted(({"predictor": m} | summed_up(board, predictor=m) for m in MODELS), key=lambda row: row["rmse"])
    wanted = pd.DataFrame(wanted)
    wanted["fit seconds"] = [2.0 if name == "b" else np.nan for name in wanted["predictor"]]
    pd.testing.assert_frame_equal(board.overall, wanted, rtol=1e-12)


def test_the_table_by_traces_goes_trace_by_trace_the_best_of_each_first(board):
    rows = ({"trace": t, "predictor": m} | summed_up(board, trace=t, predictor=m) for t in JOBS for m in MODELS)
    wanted = pd.DataFrame(sorted(rows, key=lambda row: (row["trace"], row["rmse"])))
    assert list(wanted["rmse"]) != sorted(wanted["rmse"])
    pd.testing.assert_frame_equal(board.per_trace, wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["rmse", "mae"])
def test_a_rank_is_the_mean_of_a_predictors_places_among_all_over_the_traces(board, measure):
    places = {m: [] for m in MODELS}
    for job in JOBS:
        ratio = {m: summed_up(board, trace=job, predictor=m)[measure] for m in MODELS}
        for m in MODELS:
            places[m].append(sorted(ratio.values()).index(ratio[m]) + 1)
    assert any(fmean(of) != np.median(of) for of in places.values())
    assert {m: board._ranks(measure)(m)["rank"] for m in MODELS} == {m: fmean(of) for m, of in places.items()}


def test_workers_of_a_job_are_those_of_the_baseline_and_one_job_has_no_ranks(board):
    assert board._workers_of_jobs == JOBS
    alone = Leaderboard(board.workers[board.workers["trace"] == "j1"], board.jobs[board.jobs["trace"] == "j1"], (), {})
    assert alone._ranks("rmse")("b") == {}
    assert alone.notes.empty


def test_a_speed_at_two_quantiles_at_once_is_at_the_higher_of_them():
    levels, quantiles = (0.1, 0.3, 0.5, 0.7, 0.9), np.array([[1.0, 2.0, 2.0, 3.0, 4.0]] * 4)
    forecast = Forecast(speed=np.full(4, 2.0), spread=np.full(4, 0.1), levels=levels, quantiles=quantiles)
    assert position(forecast, np.array([2.0, 1.0, 3.0, 4.0])) == pytest.approx([0.5, 0.1, 0.7, 0.9])


@pytest.mark.parametrize(
    ("mean", "square", "said"),
    [
        *((0.469, 1.0, "too high"), (0.471, 1.0, "right"), (0.529, 1.0, "right"), (0.531, 1.0, "too low")),
        *((0.5, 0.79, "too wide"), (0.5, 0.81, "right"), (0.5, 1.19, "right"), (0.5, 1.21, "too narrow")),
        (0.469, 2.0, "too high"),
    ],
)
def test_intervals_are_wrong_from_three_hundredths_of_position_or_a_fifth_of_the_square_on(mean, square, said):
    sure = 1e-6 * np.random.default_rng(0).normal(size=200)
    job = Residuals(Estimate(mean, sure - sure.mean()), Estimate(square, sure - sure.mean()), np.array([0.009, 0.011]))
    found = Residuals.joined({"a": job, "b": job}, {"a": 3, "b": 1})
    assert found.pop("intervals") == said
    assert found == pytest.approx({"position": mean, "spread": math.sqrt(square), "predictable": 0.5})
    unsure = Estimate(mean, 100 * np.random.default_rng(0).normal(size=200))
    assert Residuals.joined({"a": Residuals(unsure, unsure, np.full(2, np.nan))}, {"a": 1})["intervals"] == "right"


# -- worth -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "told"), [(0.049, False), (-0.049, False), (0.051, True), (-0.051, True)])
def test_recorded_sizes_are_told_of_if_a_worker_is_a_twentieth_off_equal_ones(off, told):
    samples = np.tile([1000 * (1 + off), 1000 * (1 - off)], (60, 1))
    found = worth(Trace(samples, np.ones((60, 2)), workers=["a", "b"]))
    recorded = "; with the recorded sizes workers wait 0 %" if told else ""
    assert found.sentences[0] == f"Equal batches wait {100 * abs(off) / (1 + abs(off)):.0f} % of the time" + (
        f", mostly for {'a' if off < 0 else 'b'}{recorded}." if found.speedup_oracle >= 1.02 else f"{recorded}."
    )


@pytest.mark.parametrize(("slow", "oracle", "named"), [(2, 1.02, False), (3, 1.02, True), (3, 1.0199, False)])
def test_a_worker_is_named_that_is_the_slowest_in_most_iterations_if_balancing_gains(slow, oracle, named):
    seconds = [[1.0, 2.0]] * slow + [[2.0, 1.0]] * (4 - slow)
    said = _on_waiting(Worth(waiting_equal=0.25, speedup_oracle=oracle), Trace(np.ones((4, 2)), seconds))
    assert said == f"Equal batches wait 25 % of the time{', mostly for worker 1' * named}."


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        (1.02, "would make iterations 1.02x as fast, without any forecast."),
        (np.nextafter(1.02, 0), "would gain next to nothing (1.02x)."),
        (np.nextafter(2.0 - 1.02, 1), "would gain next to nothing (0.98x)."),
        (2.0 - 1.02, "would make iterations slower (0.98x as fast)."),
    ],
)
def test_a_fixed_split_gains_nothing_to_speak_of_within_two_hundredths(fixed, said):
    assert _on_fixed(Worth(speedup_fixed=fixed)) == f"A fixed split by each worker's usual speed {said}"


@pytest.mark.parametrize(
    ("oracle", "noisy", "said"),
    [
        (np.nextafter(1.02, 0), 0, r"Even speeds known in advance would gain no more than 1\.02x\."),
        (1.02, 1, r"Forecasts could add at most 1\.02x to that; an average .* reaches 1\.01x in all\."),
        (1.02, 2, r"Hindsight would add 1\.02x to that, but no forecast can: the speeds look like white noise; an .*"),
    ],
)
def test_forecasts_are_worth_what_they_add_unless_most_speeds_are_noise(oracle, noisy, said):
    rng = np.random.default_rng(0)
    walks, noise = 50 + np.cumsum(rng.normal(size=(200, 2)), axis=0), rng.uniform(1, 2, (200, 2))
    speed = np.hstack([walks[:, : 2 - noisy + (noisy == 2)], noise[:, :noisy]])
    job = Trace(np.ones_like(speed), 1 / speed)
    assert re.fullmatch(said, _on_forecasts(Worth(speedup_fixed=1.0, speedup_online=1.01, speedup_oracle=oracle), job))


def test_forecasts_that_add_less_than_two_hundredths_to_a_fixed_split_add_nothing():
    found = Worth(speedup_fixed=2.0, speedup_online=2.0, speedup_oracle=2.0 * np.nextafter(1.02, 0))
    said = "Forecasts could add next to nothing to that (at most 1.02x); an average of past speeds (ewma) reaches 2.00x"
    assert _on_forecasts(found, Trace(np.ones((30, 2)), np.ones((30, 2)))) == f"{said} in all."
