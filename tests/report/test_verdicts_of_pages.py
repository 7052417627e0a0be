"""Verdicts agree with what the data is known to hold: planted slow workers, known waiting, known calibration."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_pages import slowed_run, slowed_speeds, slowed_trace

from paceline.datasets import Trace
from paceline.eval import Balanced, leaderboard, replay_all
from paceline.predictors import EWMA
from paceline.recording import read_run
from paceline.report import evaluation_page, replay_page, run_page
from paceline.report.drawing import as_text
from paceline.report.replay_page import ratio_standard_error
from paceline.report.run_page import slow_workers

NAMES = ["gpu0", "gpu1", "gpu2", "gpu3"]


def verdict_of(page):
    return {answer["asks"]: answer for answer in page["verdict"]}


def block_of(page, title):
    (found,) = [
        block
        for part in page["sections"]
        for block in part["blocks"]
        if title in (block.get("title"), block.get("caption"))
    ]
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    workers=st.integers(2, 40),
    iterations=st.integers(60, 900),
    factor=st.floats(0.2, 0.75),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_planted_slow_worker_is_found(workers, iterations, factor, seed, data):
    slow, at = data.draw(st.integers(0, workers - 1)), data.draw(st.integers(0, iterations - 25))
    first = slow_workers(slowed_speeds(workers, iterations, slow, at, factor, seed))[0]
    assert (first.worker, first.is_ongoing, first.last_iteration) == (slow, True, iterations - 1)
    assert abs(first.first_iteration - at) <= 9
    assert first.speed == pytest.approx(factor, rel=0.05)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 600), st.integers(0, 10**6))
def test_of_alike_workers_nobody_is_slow(workers, iterations, seed):
    assert not slow_workers(slowed_speeds(workers, iterations, 0, iterations, seed=seed))


def test_gaps_and_strays_make_nobody_slow():
    speed_TW = slowed_speeds(4, 100, 0, 100)
    speed_TW[10:13, 2] *= 0.1
    speed_TW[40:60, 1] = np.nan
    assert not slow_workers(speed_TW)
    assert not slow_workers(np.full((30, 3), np.nan))


@pytest.mark.slow
def test_run_verdict_states_its_numbers(tmp_path):
    run = slowed_run(tmp_path / "run.jsonl", NAMES)
    verdict = verdict_of(run_page(run))
    assert verdict["Who is slow?"]["headline"] == "gpu2"
    assert "since iteration 60." in verdict["Who is slow?"]["text"]
    waits = verdict["What does waiting cost?"]
    assert f": {as_text(np.nansum(run.makespan[:, None] - run.seconds), 'seconds')}, summed over 4" in waits["text"]
    share = (run.makespan[:, None] - run.seconds).sum() / (4 * run.makespan.sum())
    assert waits["headline"] == as_text(share, "percent")
    saved = verdict["What did balancing save?"]
    equal = run.fleet_columns["equal_seconds"]
    assert f": {as_text(np.sum(equal - run.makespan), 'seconds')}, by {run.acted.sum()} changes of" in saved["text"]
    assert saved["headline"] == as_text(1 - run.makespan.sum() / equal.sum(), "percent")


@pytest.mark.slow
def test_gantt_shows_iterations_of_best_change(tmp_path):
    run = slowed_run(tmp_path / "run.jsonl", NAMES)
    before, after = (block_of(run_page(run), title) for title in ("Before", "After"))
    best = int(np.argmax(np.where(run.acted, run.fleet_columns["gain"], -1)))
    assert f"{best - 7} to {best}." in before["about"]
    assert before["until"] == after["until"]
    for chart, rows in ((before, slice(best - 7, best + 1)), (after, slice(best + 1, best + 9))):
        by_name = {row["name"]: row for row in chart["rows"]}
        for w, name in enumerate(NAMES):
            waited = 1 - run.seconds[rows, w].sum() / run.makespan[rows].sum()
            assert by_name[name]["waits"] == pytest.approx(waited, rel=1e-3, abs=1e-6)
    assert max(row["waits"] for row in before["rows"]) > max(row["waits"] for row in after["rows"])


@pytest.mark.slow
def test_the_next_step_names_a_silent_worker_first(tmp_path):
    lines = slowed_run(tmp_path / "run.jsonl", NAMES) and (tmp_path / "run.jsonl").read_text("utf-8").splitlines()
    last = json.loads(lines[-2])
    last["seconds"][1] = None
    (tmp_path / "run.jsonl").write_text("\n".join([*lines[:-2], json.dumps(last)]) + "\n")
    advice = verdict_of(run_page(read_run(tmp_path / "run.jsonl")))["What next?"]
    assert advice["headline"] == "Look for the silent"
    assert advice["text"] == "gpu1 sent no report in its last 1 iteration."


@pytest.mark.slow
def test_uneven_samples_are_told_from_uneven_workers(tmp_path):
    run = slowed_run(tmp_path / "run.jsonl", NAMES, at=120)
    work_TW = np.random.default_rng(0).uniform(0.2, 2.0, run.sizes.shape)
    run.worker_columns["work"][:] = work_TW
    run.worker_columns["seconds"][:] = work_TW
    assert verdict_of(run_page(run))["What next?"]["headline"] == "Even out the samples"


# -- forecasts ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluation_verdict_states_interval():
    trace = slowed_trace([f"gpu{k}" for k in range(8)], iterations=400, at=200)
    board = leaderboard({"ewma": EWMA(smoothing=0.5)}, [trace])
    page = evaluation_page(board, {"ewma": EWMA(smoothing=0.5)}, [trace])
    best = board.overall["predictor"][0]
    lead = board.compare(best)
    said = verdict_of(page)["Who forecasts best?"]
    assert f"{lead.ratio:.3f} of the last value's, {lead.low:.3f} to {lead.high:.3f}" in said["text"]
    assert ("not significant" not in said["text"]) == lead.is_significant
    even = leaderboard({"ewma": EWMA(smoothing=1.0)}, [trace])
    said = verdict_of(evaluation_page(even, {"ewma": EWMA(smoothing=1.0)}, [trace]))["Who forecasts best?"]
    assert "not significant" in said["text"]


# -- replays -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_verdict_of_a_replay_states_its_table(tmp_path):
    traces = [slowed_trace(NAMES, "early", at=20), slowed_trace(NAMES, "late", at=100)]
    replays = replay_all({"ewma": Balanced(EWMA())}, traces, warmup=10)
    page = replay_page(replays, traces)
    table = replays.overall.set_index("scheme")
    verdict = verdict_of(page)
    assert verdict["What does waiting cost?"]["headline"] == as_text(
        float(table.loc["equal batches", "waiting"]), "percent"
    )
    assert verdict["What would balancing save?"]["headline"] == as_text(float(table.loc["ewma", "speed-up"]), "times")
    per = replays.per_trace.query("scheme == 'ewma'")["speed-up"]
    assert f", {per.min():.2f}x to {per.max():.2f}x from job to job;" in verdict["What would balancing save?"]["text"]
    assert "In early" in verdict["Who is slow?"]["text"], "the job that gains most"
    before, after = block_of(page, "Before: equal batches"), block_of(page, "After: balanced by ewma")
    assert before["until"] == after["until"] >= after["rows"][0]["bars"][-1][-1]


@pytest.mark.slow
def test_speed_up_interval_coverage():
    rng, held_in = np.random.default_rng(0), 0
    for _ in range(400):
        over, under = rng.lognormal(0.5, 0.4, 300), rng.lognormal(0.0, 0.4, 300)
        half = 1.96 * ratio_standard_error(over, under)
        held_in += abs(over.sum() / under.sum() - np.exp(0.5)) < half
    assert 0.9 < held_in / 400 < 0.98


def test_one_worker_and_one_iteration_have_a_page_too():
    seconds = np.full((3, 1), 2.0)
    seconds[1:] = np.nan
    trace = Trace(np.ones((3, 1)), seconds)
    page = replay_page(replay_all({}, [trace], global_batch=8, warmup=0), [trace])
    assert verdict_of(page)["Who is slow?"]["headline"] == "One worker"
    assert verdict_of(page)["What next?"]["headline"] == "Nothing"
