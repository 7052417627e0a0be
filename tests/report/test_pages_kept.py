"""Pages of made data are what they were: every figure, every sentence, every chart that is drawn."""

from pathlib import Path

import numpy as np
import pytest
from kept import require_kept
from made_pages import slowed_trace
from made_runs import ASYNC_RUNS, RUNS
from test_pages import audit_of

from paceline.eval import balanced, leaderboard, replay_all
from paceline.predictors import EWMA
from paceline.report import async_page, evaluation_page, replay_page, run_page
from paceline.report.drawing import gantt_chart, line_chart
from paceline.report.slow import who_is_slow

KEPT = Path(__file__).parent / "pages.json"


def stated(page):
    """Return a page's texts and figures, and its charts as they are drawn; of long lines only some points."""
    parts = [[part["title"], part["about"], [_stated(block) for block in part["blocks"]]] for part in page["sections"]]
    return {name: page[name] for name in ("kind", "title", "command", "verdict")} | {"parts": parts}


def _stated(block):
    if block["block"] == "table":
        times = [k for k, column in enumerate(block["columns"]) if column["name"] in ("a call", "SHA-256")]
        rows = [[cell for k, cell in enumerate(row) if k not in times] for row in block["rows"]]
        rows = [row for row in rows if row[0] != "paceline"]  # its version
        return [block["caption"], block["note"], [list(column.values()) for column in block["columns"]], rows]
    if block["block"] == "gantt":
        drawn = gantt_chart(block)
        return [block["title"], block["about"], drawn["words"], block["until"], block["rows"]]
    drawn = line_chart(block)
    lines = [[one["name"], one["colour"], one["path"][:40], _some(one["values"])] for one in drawn["lines"]]
    bands = [[one["name"], one["colour"], one["path"][:40], *map(_some, _ends(one))] for one in drawn["bands"]]
    along = [block["x"]["name"], _some(block["x"]["values"]), block["unit"], drawn["across"][:2]]
    return [block["title"], block["about"], along, drawn["words"], lines, bands]


def _ends(band):
    return band["low"], band["high"]


def _some(values):
    """Return how many values there are, how many of these are known, their mean, and a few."""
    known = [value for value in values if value is not None]
    return [len(values), len(known), sum(known) / len(known) if known else None, values[:2], values[-2:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_page_of_a_run_is_what_it_was(name):
    require_kept(KEPT, f"run {name}", stated(run_page(RUNS[name], digest="ab", command="paceline report")))


@pytest.mark.parametrize("name", ASYNC_RUNS)
def test_the_page_of_an_asynchronous_run_is_what_it_was(name):
    require_kept(KEPT, f"asynchronous run {name}", stated(async_page(ASYNC_RUNS[name], digest="ab")))


def traces_of(count):
    names = [f"gpu{k}" for k in range(5)]
    return [slowed_trace(names, f"job {k}", iterations=70 + 30 * k, slow=k, at=30 + 10 * k) for k in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_page_of_an_evaluation_is_what_it_was(count):
    traces, models = traces_of(count), {"ewma": EWMA(smoothing=0.3)}
    board = leaderboard(models, traces, warmup=10)
    page = evaluation_page(board, models, traces, warmup=10, settings=[("a", "b")], command="paceline evaluate")
    require_kept(KEPT, f"evaluation of {count}", stated(page))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_page_of_a_replay_is_what_it_was(count):
    traces = traces_of(count)
    replays = replay_all(balanced({"ewma": EWMA(smoothing=0.3)}), traces, warmup=10)
    require_kept(KEPT, f"replay of {count}", stated(replay_page(replays, traces, settings=[("a", "b")], command="c")))


def test_the_page_of_an_audit_is_what_it_was(tmp_path):
    require_kept(KEPT, "audit", stated(audit_of(tmp_path, ["gpu0", "gpu1", "gpu2", "gpu3"])))


SLOW = {
    "nobody": (4, []),
    "one since then": (4, [(2, 40, 120, 0.5)]),
    "one from the first on": (4, [(2, 0, 120, 0.8)]),
    "one for a while": (4, [(2, 40, 70, 0.5)]),
    "two": (5, [(2, 40, 120, 0.5), (0, 30, 60, 0.7)]),
    "four": (9, [(2, 40, 120, 0.5), (0, 30, 60, 0.7), (5, 80, 120, 0.6), (7, 5, 25, 0.2)]),
    "one of two": (2, [(1, 40, 120, 0.5)]),
    "in turn": (4, [(0, 0, 30, 0.5), (1, 30, 60, 0.5), (2, 60, 90, 0.4)]),
    "of three two in turn": (3, [(0, 10, 30, 0.5), (1, 60, 90, 0.5)]),
    "half of them in turn": (4, [(0, 10, 30, 0.5), (1, 60, 90, 0.5)]),
    "alone": (1, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_who_is_slow_is_said_as_it_was(name):
    workers, slowed = SLOW[name]
    speed_TW = 100.0 * np.random.default_rng(0).normal(1.0, 0.01, (120, workers))
    for worker, begin, end, factor in slowed:
        speed_TW[begin:end, worker] *= factor
    said = who_is_slow(speed_TW, [f"{k}" for k in range(workers)], np.arange(1000, 1120))
    require_kept(KEPT, f"slow: {name}", said)
