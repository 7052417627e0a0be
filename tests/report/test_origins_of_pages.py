"""A page says what it was made from, and with which command it is made again; charts hold what was measured."""

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_pages import slowed_trace
from made_runs import made_async_run, made_run

from paceline import __version__
from paceline.eval import balanced, leaderboard, replay_all
from paceline.predictors import EWMA, LastValue
from paceline.report import async_page, audit_page, evaluation_page, replay_page, run_page
from paceline.report.evaluation_page import _chart, _coverage, _drawn, _forecasts, interval
from paceline.report.forecast_errors import by_regime, held, moved, past_band
from paceline.report.replay_page import _best, _range_over, smooth
from paceline.training import Fact

NAN = float("nan")


def origin(page):
    settings, data = page["sections"][-1]["blocks"]
    return page["command"], settings["rows"], data["rows"]


def test_a_run_and_an_audit_name_their_file_with_its_digest_and_their_command():
    version = ["paceline", __version__]
    run = made_run(9, 3, gaps=0.0)
    assert origin(run_page(run, digest="ab12", command="paceline report a")) == (
        "paceline report a",
        [["workers", "3"], ["global batch", f"{run.of_workers['planned'][-1].sum():.0f}"], version],
        [["made.jsonl", "9 iterations of 3 workers", "ab12"]],
    )
    assert origin(run_page(run))[0] == origin(async_page(made_async_run(3, 2)))[0] == ""
    assert origin(run_page(run))[2][0][2] == ""
    assert origin(async_page(made_async_run(5, 2), digest="cd", command="paceline report b")) == (
        "paceline report b",
        [["scheme", "saps"], ["bound on staleness", "4 versions"], ["full batch", "64 samples"], version],
        [["async.jsonl", "5 rounds of 2 workers", "cd"]],
    )
    assert ["bound on staleness", "none"] in origin(async_page(made_async_run(5, 2, bound=None)))[1]
    numbers = dict.fromkeys(("deviation", "noise", "first_step"))
    words = {"status": "exact", "sentence": "Exact: so.", "remedy": "", "parameter": "", "precision": "float64"}
    verdict = {**numbers, **words, "steps": 3, "ranks": 2, "runs": {}, "notes": []}
    assert origin(audit_page(verdict, script="a.py", digest="ef", command="paceline audit a.py")) == (
        "paceline audit a.py",
        [["steps", "3"], version],
        [["a.py", "the audited script", "ef"]],
    )
    assert origin(audit_page(verdict, script="a.py"))[0] == ""


@pytest.mark.slow
def test_an_evaluation_and_a_replay_name_their_jobs_with_their_digests_their_settings_and_their_command():
    traces = [slowed_trace(["a", "b"], job, iterations=30, slow=1, at=9) for job in ("one", "two")]
    data = [[trace.name, "30 iterations of 2 workers", Fact.of(trace).digest] for trace in traces]
    board = leaderboard({"ewma": EWMA()}, traces, warmup=7)
    told = {"settings": [("seed", "3")], "command": "paceline evaluate"}
    made = evaluation_page(board, {"ewma": EWMA()}, traces, warmup=7, **told)
    settings = [["warm-up, not scored", "7 iterations"], ["seed", "3"], ["paceline", __version__]]
    assert origin(made) == ("paceline evaluate", settings, data)
    replays = replay_all(balanced({"ewma": EWMA()}), traces, warmup=7)
    made = replay_page(replays, traces, **told)
    batches = [[f"global batch, {name}", "128"] for name in ("one", "two")]
    assert origin(made) == ("paceline evaluate", [["seed", "3"], *batches, ["paceline", __version__]], data)
    assert made["title"] == "Replay of 2 recorded jobs"
    gains = [one.table.set_index("scheme")["speed-up"]["ewma"] for one in replays.replays.values()]
    middle = replays.overall.set_index("scheme")["speed-up"]["ewma"]
    assert _range_over(replays, "ewma") == (min(gains), middle, max(gains))
    assert _best(replays) == "ewma"
    assert _best(replay_all({}, traces, warmup=7)) == "oracle"
    alone = replay_page(replay_all({}, traces[:1], warmup=7), traces[:1])
    assert (alone["title"], alone["command"]) == ("Replay of one", "")


def charts_of(page):
    return {b["title"]: b for part in page["sections"] for b in part["blocks"] if b["block"] == "lines"}


def rounded(values):
    return [None if not np.isfinite(value) else float(f"{value:.5g}") for value in np.asarray(values, dtype=float)]


def test_charts_of_a_run_are_in_milliseconds_and_percent_of_what_was_measured():
    run = made_run(40, 3, seed=4)
    run.forecast_seconds[0] = 9.0  # the first forecasts are far off, and are not drawn
    charts = charts_of(run_page(run))
    top = 1.1 * max(np.nanmax(run.seconds), run.of_fleet["equal_seconds"].max())
    equal, forecast, measured = (line["values"] for line in charts["Time of the slowest worker"]["lines"])
    assert equal == rounded(1e3 * run.of_fleet["equal_seconds"])
    assert measured == rounded(1e3 * run.makespan)
    expected = np.nanmax(run.forecast_seconds, axis=1)
    assert forecast == rounded(np.where(expected < top, 1e3 * expected, NAN))
    assert charts["Waiting over the run"]["lines"][0]["values"] == rounded(100 * run.waiting_share)
    assert charts["Waiting over the run"]["x"]["values"] == list(range(3, 43))
    for line in charts["Share of the batch"]["lines"]:
        w = run.workers.index(line["name"])
        assert line["values"] == rounded(100 * run.sizes[:, w] / np.nansum(run.sizes, axis=1))
    (own,) = [chart for title, chart in charts.items() if title.startswith("Forecast and actual time of ")]
    w = run.workers.index(own["title"].removeprefix("Forecast and actual time of "))
    actual, forecast = 1e3 * run.seconds[:, w], 1e3 * run.forecast_seconds[:, w]
    top = 1.1 * np.nanmax(actual)
    assert [line["values"] for line in own["lines"]] == [
        rounded(actual),
        rounded(np.where(forecast < top, forecast, NAN)),
    ]
    low, high = past_band(forecast, actual)
    (band,) = own["bands"]
    assert band["low"] == rounded(np.where(high < 1.5 * top, low, NAN))
    assert band["high"] == rounded(np.minimum(high, 1.5 * top))
    assert any(value is not None for value in band["low"])


def test_charts_of_an_asynchronous_run_hold_the_last_known_values():
    run = made_async_run(12, 3)
    charts = charts_of(async_page(run))
    assert charts["Wasted"]["lines"][0]["values"] == rounded(100 * run.wasted_share)
    assert charts["Wasted"]["x"]["values"] == rounded(run.seconds)
    for line in charts["Staleness"]["lines"]:
        w = run.workers.index(line["name"].removeprefix("worker "))
        seen, last = run.of_workers["staleness"][:, w], NAN
        wanted = [last := value if np.isfinite(value) else last for value in seen]
        assert line["values"] == rounded(wanted)


def rows_of(page, caption):
    (found,) = [b for part in page["sections"] for b in part["blocks"] if b.get("caption") == caption]
    return found["rows"]


def test_an_error_at_its_limit_is_within_it(monkeypatch):
    run = made_run(40, 2, gaps=0.0)
    run.of_workers["seconds"][:] = 1.0
    run.of_workers["forecast_seconds"][:] = np.repeat([1.0, 1.125, 1.25, 1.5], 10)[:, None]
    monkeypatch.setattr(importlib.import_module("paceline.report.run_page"), "WITHIN", (0.125, 0.25))
    off = {row[0]: row[1] for row in rows_of(run_page(run), "Calibration")}
    assert (off["off by 12 % at most"], off["off by 25 % at most"]) == (0.5, 0.75)


# -- errors of forecasts ---------------------------------------------------------------------------------------------


def test_errors_are_told_apart_by_how_far_the_speed_moved():
    moves = np.array([[NAN, 0.0, 0.0499], [0.05, 0.1, 0.1999], [0.2, 3.0, 0.3]])
    one = np.array([[9.0, 0.1, -0.3], [0.5, -0.7, 0.6], [1.0, NAN, -3.0]])
    found = by_regime(moves, {"a": one, "b": 2 * one})
    assert found["caption"] == "Error by how much the speed moved"
    assert [column["name"] for column in found["columns"]][2:] == ["off by, median: a", "off by, median: b"]
    assert [row[0] for row in found["rows"]] == ["steady: 0 to 5 %", "moving: 5 to 20 %", "jumping: 20 % or more"]
    assert [row[1:] for row in found["rows"]] == [
        pytest.approx(row) for row in ([2 / 7, 0.2, 0.4], [3 / 7, 0.6, 1.2], [2 / 7, 2.0, 4.0])
    ]
    none = by_regime(np.full((2, 2), NAN), {"a": np.ones((2, 2))})
    assert np.isnan([row[1:] for row in none["rows"]]).all()


def test_a_speed_moved_by_the_ratio_of_the_larger_to_the_smaller():
    speed = np.array([[100.0, NAN, 0.0], [125.0, 5.0, 1.0], [100.0, NAN, 1.0]])
    np.testing.assert_allclose(moved(speed), [[NAN] * 3, [0.25, NAN, NAN], [0.25, NAN, 0.0]])


def test_a_band_is_of_the_last_hundred_errors_before_and_needs_twenty():
    rng = np.random.default_rng(0)
    forecast, actual = rng.uniform(1, 2, (2, 130))
    actual[[3, 40, 41]] = NAN
    actual[7], forecast[9] = 0.0, 0.0
    low, high = past_band(forecast, actual)
    with np.errstate(divide="ignore"):
        errors = np.log(actual / forecast)
    for t in range(130):
        past = [error for error in errors[max(t - 100, 0) : t] if np.isfinite(error)]
        ends = forecast[t] * np.exp(np.quantile(past, [0.05, 0.95])) if len(past) >= 20 else [NAN, NAN]
        assert [low[t], high[t]] == pytest.approx(ends, nan_ok=True)
    assert np.isnan(low[:23]).all()
    assert np.isfinite(low[23])
    assert np.isnan(past_band(forecast[:5], actual[:5])).all()


def test_a_value_at_an_end_of_its_band_lies_in_it():
    low, high = np.array([1.0, 1.0, 1.0, NAN, 1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0, 2.0, NAN, 2.0, 2.0])
    assert held(low, np.array([1.0, 2.0, 0.9, 1.5, 1.5, NAN, 2.1]), high) == 0.5
    assert np.isnan(held(low[:1], np.array([NAN]), high[:1]))


# -- forecasts of an evaluation --------------------------------------------------------------------------------------


def test_the_forecasts_of_a_worker_are_its_last_two_hundred_and_fifty_between_the_ends_of_their_interval():
    trace = slowed_trace(["a", "3"], iterations=270, slow=1)
    job = _forecasts(LastValue(), trace, 10)
    chart = _chart(job, 1, "the one")
    assert (chart["title"], chart["about"], chart["unit"]) == ("job, worker 3", "This is the one.", "samples/s")
    assert chart["x"]["values"] == list(range(20, 270))
    speed = trace.speed[:, 1]
    assert [line["values"] for line in chart["lines"]] == [rounded(speed[20:]), rounded(speed[19:-1])]
    (band,) = chart["bands"]
    assert band["low"] == rounded(job.quantiles[0, -250:, 1])
    assert band["high"] == rounded(np.minimum(job.quantiles[-1, -250:, 1], 2 * speed[20:].max()))
    np.testing.assert_array_equal(job.moved, moved(trace.speed)[10:])
    np.testing.assert_array_equal(job.last, trace.speed[9:-1])
    below, inside = _coverage([job])
    levels = [(job.actual <= one).mean() for one in job.quantiles]
    assert below.tolist() == levels
    assert inside == ((job.quantiles[0] <= job.actual) & (job.actual <= job.quantiles[-1])).mean()


def test_an_interval_without_an_end_is_drawn_up_to_twice_the_highest_speed():
    trace = slowed_trace(["a"], iterations=30, slow=0, at=9)
    job = _forecasts(LastValue(), trace, 0)
    assert np.isinf(job.quantiles[-1, 0, 0])
    (band,) = _chart(job, 0, "")["bands"]
    assert band["high"][0] == rounded([2 * trace.speed.max()])[0]


def test_the_worst_worker_and_the_one_in_the_middle_are_drawn():
    traces = [slowed_trace(["a", "b", "c", "d"], "one", iterations=40, slow=1, at=20)]
    board = leaderboard({"ewma": EWMA(smoothing=0.3)}, traces, warmup=5)
    jobs = [_forecasts(EWMA(smoothing=0.3), traces[0], 5)]
    ratios = board.workers.query("predictor == 'ewma'").set_index("worker")["rmse"].sort_values(ascending=False)
    drawn = _drawn(board, jobs, "ewma")["blocks"]
    assert [one["title"] for one in drawn] == [f"one, {ratios.index[0]}", f"one, {ratios.index[2]}"]
    assert [one["about"] for one in drawn] == [
        f"This is the worst forecast worker, RMSE {ratios.iloc[0]:.3f}.",
        f"This is the median worker, RMSE {ratios.iloc[2]:.3f}.",
    ]


def test_an_interval_of_a_board_is_that_of_the_mean_of_logs_and_of_one_or_of_no_error_it_is_not_known():
    def board(*ratios):
        return SimpleNamespace(workers=pd.DataFrame({"predictor": ["a"] * len(ratios), "rmse": list(ratios)}))

    logs = np.log([0.5, 1.0, 1.5])
    half = 1.96 * math.sqrt(sum((logs - logs.mean()) ** 2) / 2 / 3)
    assert interval(board(0.5, 1.0, 1.5), "a") == pytest.approx(
        (math.exp(logs.mean() - half), math.exp(logs.mean()), math.exp(logs.mean() + half))
    )
    assert interval(board(0.0, 1.0), "a") == pytest.approx((NAN, 0.0, NAN), nan_ok=True)
    assert interval(board(2.0), "a") == pytest.approx((NAN, 2.0, NAN), nan_ok=True)
    assert interval(board(1.0, 1.0), "a") == (1.0, 1.0, 1.0)


def test_a_mean_of_a_single_known_value_is_that_value():
    assert smooth(np.array([NAN, 3.0, NAN]), window=1) == pytest.approx([NAN, 3.0, NAN], nan_ok=True)
    assert smooth(np.array([2.0])).tolist() == [2.0]
    assert smooth(np.array([1.0, 2.0, 6.0, NAN]), window=3) == pytest.approx([1.5, 3.0, 4.0, 6.0])
