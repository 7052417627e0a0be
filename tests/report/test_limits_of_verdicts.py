"""What to do next changes at the limits that are told, and not a step before; only the latest iterations count."""

import numpy as np
import pytest
from made_pages import slowed_trace
from made_runs import made_async_run, made_run

from paceline.eval import balanced, leaderboard, replay_all
from paceline.predictors import EWMA
from paceline.report import async_page, replay_page, run_page
from paceline.report.evaluation_page import _verdict, interval
from paceline.report.replay_page import _next, jackknife, smooth


def advice_of(page):
    (row,) = [answer for answer in page["verdict"] if answer["asks"] == "What next?"]
    return row["headline"]


def run_that_waits(share, *, iterations=120, drift=0.0, off=0.0, work=False, late=0):
    """A run of two workers that wait this share of the time; the first ``late`` iterations are far worse in all."""
    run = made_run(iterations, 2, gaps=0.0, changes=0.0)
    seconds = run.of_workers["seconds"]
    seconds[:] = [1.0, 1.0 - 2 * share]
    seconds[:late, 1] = 0.01
    run.of_workers["sizes"][:] = 8.0
    run.of_workers["forecast_seconds"][:] = seconds * (1 + off)
    run.of_workers["forecast_seconds"][:late] *= 9
    run.of_workers["work"][:] = seconds if work else np.nan
    run.of_fleet["drift"][:] = drift
    run.of_fleet["drift"][:late] = 1.0
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "below", "above"),
    [
        ({"share": 0.375, "drift": 0.25}, ("DRIFTED", "Replay it"), "Fit again"),
        ({"share": 0.25}, ("LITTLE", "Nothing"), "Replay it"),
        ({"share": 0.25, "off": 0.25}, ("FAR_OFF", "Replay it"), "Forecast better"),
    ],
)
@pytest.mark.parametrize("late", [0, 20])
def test_advice_changes_just_above_its_limit(monkeypatch, facts, below, above, late):
    name, headline = below
    for limit, expected in ((0.25, headline), (0.2499, above)):
        monkeypatch.setattr(f"paceline.report.run_verdict.{name}", limit)
        assert advice_of(run_page(run_that_waits(**facts, late=late))) == expected


TOLD = [
    ({"share": 0.06}, "Replay it"),
    ({"share": 0.04}, "Nothing"),
    ({"share": 0.3, "off": 0.19}, "Replay it"),
    ({"share": 0.3, "off": 0.21}, "Forecast better"),
    ({"share": 0.3, "drift": 0.05}, "Replay it"),
    ({"share": 0.3, "drift": 0.06}, "Fit again"),
    ({"share": 0.3, "work": True}, "Even out the samples"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("facts", "headline"), TOLD)
def test_advice_at_the_limits_that_are_told(facts, headline):
    assert advice_of(run_page(run_that_waits(**facts))) == headline


def test_an_asynchronous_run_is_wasteful_just_above_the_limit():
    for share, expected in ((0.05, "Nothing"), (0.0501, "Try another scheme")):
        assert advice_of(async_page(made_async_run(5, 2, wasted=share))) == expected


@pytest.mark.parametrize(
    ("gain", "oracle", "scheme", "headline"),
    [
        (1.5, 1.019, "ewma", "Nothing"),
        (1.019, 1.02, "ewma", "Forecast better"),
        (1.02, 1.02, "ewma", "Balance it"),
        (1.02, 1.02, "auto", "Balance it"),
        (1.02, 1.02, "a.safetensors", "Balance it"),
    ],
)
def test_the_advice_of_a_replay_follows_its_gains(gain, oracle, scheme, headline):
    said = _next(gain, oracle, scheme)
    assert said["headline"] == headline
    if headline == "Balance it":
        words = {"auto": "auto is its default", "a.safetensors": "Give a.safetensors", "ewma": "paceline fit ewma"}
        assert words[scheme] in said["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coverage", "words"),
    [(0.8499, "too narrow"), (0.85, "as they should"), (0.95, "as they should"), (0.9501, "too wide")],
)
def test_intervals_that_hold_too_rarely_or_too_often_are_told(coverage, words):
    board = leaderboard({"ewma": EWMA()}, [slowed_trace(["a", "b"], slow=1)], warmup=10)
    assert words in _verdict(board, "ewma", coverage)[3]["text"]
    alone = leaderboard({"ewma": EWMA()}, [slowed_trace(["a"], slow=0)], warmup=10)
    low, middle, high = interval(alone, "ewma")
    assert np.isnan([low, high]).all()
    assert middle == alone.workers.query("predictor == 'ewma'")["rmse"].item()


def test_running_means_and_jackknifes_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    for length in (1, 3, 24, 25, 26, 60):
        values = np.where(rng.random(length) < 0.2, np.nan, rng.uniform(1, 2, length))
        window = min(25, length)
        for k, found in enumerate(smooth(values)):
            first = k - window // 2
            part = values[max(first, 0) : max(first + window, 0)]
            known = part[np.isfinite(part)]
            assert found == (pytest.approx(known.mean()) if len(known) else pytest.approx(np.nan, nan_ok=True))
        over, under = rng.uniform(1, 2, (2, length))
        blocks = np.array_split(np.arange(length), min(20, length))
        if len(blocks) < 2:
            assert np.isnan(jackknife(over, under))
            continue
        left = [np.delete(over, one).sum() / np.delete(under, one).sum() for one in blocks]
        count = len(blocks)
        assert jackknife(over, under) == pytest.approx(np.sqrt((count - 1) * np.var(left)))


@pytest.mark.parametrize(("changes", "words"), [(0, "0 changes of sizes"), (1, "1 change of sizes"), (2, "2 changes")])
def test_one_change_of_sizes_is_told_in_the_singular(changes, words):
    run = made_run(12, 2, gaps=0.0, changes=0.0)
    run.acted[:] = np.arange(12) < changes
    run.of_fleet["equal_seconds"][:] = 2 * run.makespan
    assert words in str(run_page(run))


def test_the_time_saved_is_that_of_iterations_of_which_both_times_are_known():
    run = made_run(12, 2, gaps=0.0, changes=0.0)
    run.of_fleet["equal_seconds"][:] = 0.25 + run.makespan
    run.of_fleet["equal_seconds"][:4] = np.nan
    assert "2 s" in str(run_page(run)["verdict"])


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "rows"), [(12, 12), (14, 13)])
def test_twelve_workers_at_most_have_a_row_of_their_own_in_a_replay(workers, rows):
    trace = slowed_trace([f"gpu{k}" for k in range(workers)], iterations=30)
    page = replay_page(replay_all(balanced({"ewma": EWMA()}), [trace], warmup=5), [trace])
    blocks = [block for part in page["sections"] for block in part["blocks"]]
    charts = [block for block in blocks if block["block"] == "gantt"]
    assert [len(block["rows"]) for block in charts] == [rows, rows]
    names = [row["name"] for row in charts[0]["rows"]]
    assert sum(name.startswith("gpu") for name in names) == 12, "the others share a row"
