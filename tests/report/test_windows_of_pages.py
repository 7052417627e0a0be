"""Which iterations a page shows, who comes first, and what its verdict says at the edges, by hand."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
from made_runs import made_async_run, made_run

from paceline.datasets import Trace
from paceline.eval import replay_all
from paceline.eval.replay.synchronous import Replay, ReplayedIteration
from paceline.report import async_page, replay_page, run_page
from paceline.report.async_page import _straggles, _wasted
from paceline.report.replay_page import _job, _next, jackknife
from paceline.report.run_verdict import _cost, _saved, run_verdict, speed_of

NAN = float("nan")
paging = importlib.import_module("paceline.report.run_page")


def blocks_of(page, kind):
    return [block for part in page["sections"] for block in part["blocks"] if block["block"] == kind]


def run_that_acted(at, gains, iterations=30):
    run = made_run(iterations, 2, gaps=0.0, changes=0.0)
    for t, gain in zip(at, gains, strict=True):
        run.acted[t], run.of_fleet["gain"][t] = True, gain
    return run


@pytest.mark.parametrize(
    ("at", "gains", "shown"),
    [
        ((12, 20), (0.1, 0.2), [("Before", 13, 20), ("After", 21, 28)]),
        ((12, 20), (0.3, 0.2), [("Before", 5, 12), ("After", 13, 20)]),
        ((3,), (NAN,), [("Before", 0, 3), ("After", 4, 11)]),
        ((28,), (0.1,), [("Before", 21, 28), ("After", 29, 29)]),
        ((29,), (0.1,), None),
        ((), (), None),
    ],
)
def test_the_eight_iterations_before_and_after_the_change_that_gains_most_are_shown(at, gains, shown):
    run = run_that_acted(at, gains)
    charts = blocks_of(run_page(run), "gantt")
    if shown is None:
        waits = [run.waiting_share[max(t - 7, 0) : t + 1].sum() for t in range(30)]
        last = int(np.argmax(waits))
        shown = [("The iterations that waited most", max(last - 7, 0), last)]
    assert [chart["title"] for chart in charts] == [title for title, _, _ in shown]
    for chart, (_, first, last) in zip(charts, shown, strict=True):
        assert chart["about"].startswith(f"Iterations {first + 3} to {last + 3}. ")
        assert all(len(row["bars"]) == last - first + 1 for row in chart["rows"])
    longest = max(run.makespan[first : last + 1].sum() for _, first, last in shown)
    assert [chart["until"] for chart in charts] == [float(f"{longest:.5g}")] * len(charts)
    ends = {"Before": " Then came the change", "After": " The time axis is the same."}
    for chart in charts:
        assert ends.get(chart["title"], " Sizes were not changed.") in chart["about"]


def test_slow_workers_come_first_then_those_that_were_waited_for_most():
    run = made_run(60, 4, gaps=0.0)
    seconds = run.of_workers["seconds"]
    seconds[:] = run.sizes / 1000.0
    seconds[:, 3] *= 0.95
    seconds[40:, 2] *= 2.0
    seconds[:40, 1] *= 1.05
    slowest = np.bincount(np.nanargmax(seconds, axis=1), minlength=4)
    order = [2, *(w for w in np.argsort(-slowest, kind="stable") if w != 2)]
    assert paging._first(run) == order
    rows = next(part for part in run_page(run)["sections"] if part["title"] == "Workers")["blocks"][0]["rows"]
    assert [row[0] for row in rows] == [f"gpu{w}" for w in order]
    for row, w in zip(rows, order, strict=True):
        waits = 1 - seconds[:, w] / seconds.max(axis=1)
        speed = run.sizes[:, w] / seconds[:, w]
        off = np.abs(run.forecast_error[:, w])
        wanted = [run.sizes[:, w].mean(), np.median(seconds[:, w]), np.median(speed), np.median(off[np.isfinite(off)])]
        assert row[1:] == pytest.approx([*wanted, waits.mean(), np.mean(run.slowest == w), 0.0])


def test_only_the_last_twenty_changes_are_listed_with_their_reasons():
    run = run_that_acted(range(1, 26), [0.1] * 25)
    listed = [block for block in blocks_of(run_page(run), "table") if block["caption"] == "The last changes of sizes"]
    assert [row[0] for row in listed[0]["rows"]] == [f"{t + 3}" for t in range(6, 26)]
    rounds = made_async_run(40, 3)
    rounds = replace(rounds, acted=tuple(k > 2 for k in range(40)), why=tuple(f"So {k}." for k in range(40)))
    listed = [block for block in blocks_of(async_page(rounds), "table") if block["caption"] == "The last rounds"]
    assert listed[0]["rows"] == [[f"{k}", f"So {k}."] for k in range(20, 40)]


def test_figures_of_a_run_are_those_that_are_known():
    run = made_run(12, 2, gaps=0.0, drift=0.25)
    run.of_fleet["drift"][3] = 0.5
    run.of_fleet["equal_seconds"][:] = NAN
    (figures,) = [block for block in blocks_of(run_page(run), "table") if block["caption"] == "In figures"]
    told = dict(figures["rows"])
    assert told["iterations"] == "12"
    assert told["samples"] == f"{run.sizes.sum():,.0f}"
    assert told["speeds or covariates far from what the model was fitted on, the most at a time"] == "50 %"
    assert told["times the workers had different plans"] == f"{(~run.agreed).sum()}"
    assert told["changes of sizes"] == f"{run.acted.sum()}"
    assert "the same with equal batches, an estimate" not in told
    run.of_fleet["drift"][:] = NAN
    (figures,) = [block for block in blocks_of(run_page(run), "table") if block["caption"] == "In figures"]
    assert not any("far from" in name for name, _ in figures["rows"])


# -- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "said"), [(1.0, "of the computing time"), (0.9, "It was slower"), (1.1, "of the")])
def test_what_balancing_saved_is_told_as_a_loss_below_nothing(times, said):
    run = run_that_acted((3,), (0.1,))
    run.of_fleet["equal_seconds"][:] = times * run.makespan
    found = _saved(run)
    assert found["text"].startswith(said)
    assert found["facts"]["changes"] == 1
    key = "seconds"
    assert found["facts"][key] == pytest.approx(abs(times - 1) * run.makespan.sum(), abs=1e-9)
    assert found["facts"]["saved"] == pytest.approx(1 - 1 / times, abs=1e-9)
    run.of_fleet["equal_seconds"][:] = NAN
    assert _saved(run)["headline"] == "Not known"


def test_what_waiting_costs_is_told_in_a_share_and_in_seconds():
    run = made_run(10, 3, gaps=0.0)
    facts = _cost(run)["facts"]
    seconds = run.of_workers["seconds"]
    waited = seconds.max(axis=1, keepdims=True) - seconds
    assert facts == pytest.approx(
        {"share": waited.sum() / (3 * seconds.max(axis=1).sum()), "waited": waited.sum(), "workers": 3}
    )
    alone = made_run(10, 2, gaps=0.0)
    alone.of_workers["seconds"][:, 1] = NAN
    assert _cost(alone)["headline"] == "Not known"
    last = run_verdict(alone)[-1]
    assert last["headline"] in ("Look for the silent", "Nothing")
    if last["headline"] == "Look for the silent":
        assert last["text"] == "gpu1 sent no report in its last 10 iterations."


def test_a_speed_is_that_of_the_work_where_samples_have_costs():
    run = made_run(6, 2, gaps=0.0)
    np.testing.assert_array_equal(speed_of(run), run.sizes / run.seconds)
    run.of_workers["sizes"][1, 0] = run.of_workers["seconds"][1, 0] = 0.0
    assert np.isnan(speed_of(run)[1, 0])
    run.of_workers["work"][:] = 5.0
    run.of_workers["seconds"][0, 0] = 0.0
    wanted = 5.0 / np.where(run.seconds > 0, run.seconds, NAN)
    np.testing.assert_array_equal(speed_of(run), wanted)


def rounds_with(*stragglers):
    run = made_async_run(len(stragglers), 3)
    return replace(run, stragglers=stragglers)


def test_the_most_frequent_straggler_is_named_since_it_first_was_one():
    first = _straggles(rounds_with(("0",), ("1", "0"), ("1",), ("1",), ()))
    assert (first["headline"], first["facts"]["share"]) == ("worker 1", 0.6)
    assert first["facts"]["since"] == float(rounds_with((), (), (), (), ()).seconds[1])
    always = _straggles(rounds_with(("2",), ("2",)))
    assert always["text"] == "It was a straggler in 100 % of the rounds, from the first one on."
    assert "since" not in always["facts"]
    assert _straggles(rounds_with((), ()))["headline"] == "Nobody"


def test_what_was_wasted_is_what_the_last_round_counted():
    run = made_async_run(7, 2)
    facts = _wasted(run)["facts"]
    assert facts == {name: float(run.of_fleet[name][-1]) for name in ("dropped", "abandoned", "refused")} | {
        "share": float(run.wasted_share[-1])
    }


# -- replays ---------------------------------------------------------------------------------------------------------


def test_a_jackknife_leaves_each_of_twenty_parts_out():
    assert jackknife(np.array([3.0, 1.0]), np.array([2.0, 2.0])) == 0.5
    assert np.isnan(jackknife(np.ones(1), np.ones(1)))


def test_the_five_iterations_that_waited_most_are_shown_and_all_if_there_are_fewer():
    rng = np.random.default_rng(3)
    trace = Trace(np.ones((14, 3)), rng.uniform(1, 2, (14, 3)), workers=["a", "b", "c"], meta={"job": "made"})
    for count in (9, 5, 4, 1):
        seconds = rng.uniform(1, 2, (2, count, 3))
        ran = [[ReplayedIteration(k + 5, np.ones(3, int), row) for k, row in enumerate(rows)] for rows in seconds]
        found = Replay("made", {"equal batches": ran[0], "mine": ran[1], "oracle": ran[1]}, skipped=0)
        before, after, times, speeds = _job(found, trace, "mine")["blocks"]
        waits = [one.waiting for one in ran[0]]
        k = max(range(max(count - 4, 1)), key=lambda k: sum(waits[k : k + 5]))
        last = min(k + 4, count - 1)
        assert before["about"] == f"Iterations {k + 5} to {last + 5} of made: those in a row that waited most."
        assert len(before["rows"][0]["bars"]) == len(after["rows"][0]["bars"]) == last - k + 1
        until = seconds[0, k : k + 5].max(axis=1).sum()
        assert before["until"] == after["until"] == float(f"{until:.5g}")
        assert after["title"] == "After: balanced by mine"
        assert [(one["name"], one["colour"]) for one in times["lines"]] == [
            *(("equal batches", 5), ("oracle", 2), ("mine", 0))
        ]
        assert times["x"]["values"] == [k + 5 for k in range(count)]
        assert times["lines"][0]["values"][0] == pytest.approx(
            1e3 * seconds[0].max(axis=1)[: min(count, 25) - min(count, 25) // 2].mean(), rel=1e-4
        )
        assert speeds["x"]["values"] == list(range(14))


def test_advice_on_a_replay_is_told_in_whole_sentences():
    assert [_next(*given)["text"] for given in ((1.0, 1.0199, "a"), (1.0, 1.5, "a"), (1.5, 1.5, "a"))] == [
        "Even speeds known in advance would gain no more than 1.02x: workers are alike.",
        "Balancing by a reaches 1.00x of 1.50x: compare predictors with paceline evaluate.",
        "paceline fit a --out model.safetensors, then give it to attach as predictor=load_model(...).",
    ]


def test_a_page_of_two_replays_shows_the_job_that_gains_most_and_says_so():
    traces = [
        Trace(np.full((30, 2), 64.0), np.tile([1.0, slow], (30, 1)), meta={"job": f"slow {slow}"})
        for slow in (2.0, 4.0)
    ]
    page = replay_page(replay_all({}, traces, warmup=5), traces)
    assert page["sections"][1]["title"] == "Who waits, before and after: slow 4.0"
    assert page["verdict"][0]["text"].endswith(" In slow 4.0, the job that gains most.")
    assert page["verdict"][2]["text"].startswith("as fast as equal batches with oracle, 1.49x to 2.49x from job to")
    alone = replay_page(replay_all({}, traces[:1], warmup=5), traces[:1])
    assert "with 95 % confidence" in alone["verdict"][2]["text"]
    assert "the job that gains most" not in str(alone)


def test_workers_beyond_those_named_are_a_band_of_their_speeds():
    rng = np.random.default_rng(4)
    trace = Trace(np.ones((6, 9)), rng.uniform(1, 2, (6, 9)), meta={"job": "made"})
    ran = [ReplayedIteration(k, np.ones(9, int), row) for k, row in enumerate(trace.seconds)]
    speeds = _job(Replay("made", {"equal batches": ran, "mine": ran, "oracle": ran}, skipped=0), trace, "mine")[
        "blocks"
    ][-1]
    (band,) = speeds["bands"]
    assert band["name"] == "3 others"
    own = {tuple(line["values"]) for line in speeds["lines"]}
    others = [speed for speed in trace.speed.T if tuple(float(f"{value:.5g}") for value in speed) not in own]
    assert (band["low"], band["high"]) == (
        pytest.approx(np.min(others, axis=0), rel=1e-4),
        pytest.approx(np.max(others, axis=0), rel=1e-4),
    )
