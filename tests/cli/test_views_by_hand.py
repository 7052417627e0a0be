"""Numbers behind the pictures of a run, by hand: what is usual, who was waited for, and how long titles are."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from made_runs import ASYNC_RUNS, RUNS, made_async_run, made_run

from paceline.cli.watching import async_view, short_numbers, view
from paceline.datasets.waiting_time import Waiting

NAN = float("nan")


@pytest.mark.parametrize(
    ("time", "wall", "makespan", "usual"),
    [
        ([5.0], [10.0], [1.0], 10.0),
        ([5.0], [NAN], [1.0], 1.0),
        ([5.0], [np.inf], [1.0], 1.0),
        ([5.0, 7.0, 17.0, 20.0], [9.0] * 4, [1.0] * 4, 3.0),
        ([0.0, *(1e6 + 2.0 * k for k in range(21))], [9.0] * 22, [1.0] * 22, 2.0),
    ],
)
def test_the_usual_time_between_reports_is_the_median_of_late_or_that_of_the_only_iteration(
    time, wall, makespan, usual
):
    fleet = {"time": np.array(time), "wall_seconds": np.array(wall)}
    run = SimpleNamespace(of_fleet=fleet, makespan=np.array(makespan))
    assert view.usual_seconds(run) == usual
    limit = max(3.0, 5.0 * usual)
    assert not view.is_silent(run, limit)
    assert view.is_silent(run, np.nextafter(limit, np.inf))


def test_having_been_waited_for_counts_half_as_much_after_five_iterations():
    slowest = np.array([2, *[-1] * 14, 0, *[-1] * 4, 1, -1, -1, -1, -1, 0])  # the first is of no late iteration
    found = view._waited_for(SimpleNamespace(slowest=slowest, workers=("a", "b", "c", "d")))
    np.testing.assert_allclose(found, [1.0 + 0.25, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("share", "workers", "red"), [(0.5, 3, False), (0.55, 3, True), (0.55, 2, False), (1.0, 3, True), (0.0, 9, False)]
)
def test_who_was_mostly_the_slowest_of_several_is_red(share, workers, red):
    slowest = np.where(np.arange(20) < 20 * share, 1, 0)
    run = SimpleNamespace(slowest=np.concatenate([[0] * 9, slowest]), workers=tuple(range(workers)))
    text = view._slowest(run, 1)
    assert str(text) == f"{100 * share:.0f} %"
    assert (str(text.style) == "bold red") is red


@pytest.mark.parametrize(("folder", "file"), [(30, 39), (30, 40), (99, 70), (99, 71), (99, 150)])
def test_a_title_has_70_signs_at_most_and_the_end_of_the_file(folder, file):
    name = f"/home/{'a' * folder}/{'b' * (file - 6)}.jsonl"
    found = view.title(name)
    assert len(found) <= 70
    assert name.endswith(found.removeprefix("…"))
    whole = folder + 1 + file <= 70
    assert ("/" in found) is whole
    assert found.startswith("…") is (file > 70)
    assert len(found) == (folder + 1 + file if whole else min(file, 70))


@pytest.mark.parametrize(
    ("values", "found"), [([1.0, 2.0, NAN], 2.0), ([NAN, NAN], 0.0), ([], 0.0), ([3.0, np.inf], 3.0), ([-1.0], -1.0)]
)
def test_the_last_known_value_counts(values, found):
    assert async_view.last(np.array(values)) == found


def test_what_is_missing_is_said_of_three_workers_or_of_all():
    def said(silent, sizes):
        workers = tuple(f"w{k}\x1b" for k in range(len(silent)))
        run = SimpleNamespace(silent_workers=np.array(silent), sizes=np.array([sizes], float), workers=workers)
        missing = [int(w) for w in np.argsort(-run.silent_workers, kind="stable") if silent[w]]
        return view._missing(run, missing)

    assert said([0, 1, 5], [8, 8, 8]) == r"w2\x1b for 5 iterations and w1\x1b for 1 iteration"
    assert said([2, 1, 5], [8, 8, 8]) == "any worker for 1 iteration"
    assert said([2, 0, 5], [8, NAN, 8]) == "any worker for 2 iterations"
    five = r"w0\x1b for 9 iterations, w1\x1b for 9 iterations, w2\x1b for 9 iterations"
    assert said([9, 9, 9, 0], [8] * 4) == five.replace(", w2", " and w2")
    assert said([9, 9, 9, 9, 0], [8] * 5) == f"{five} and 1 other"
    assert said([9, 9, 9, 9, 9, 0], [8] * 6) == f"{five} and 2 others"


def test_the_slowest_before_a_silence_is_named_of_several_workers():
    def said(slowest, workers=("a", "b\x1b"), usual=2.0):
        time = np.arange(3) * usual
        run = SimpleNamespace(slowest=np.array(slowest), workers=workers, of_fleet={"time": time})
        return list(view._silence(run, 90.0))

    first = "No iteration has been reported for 90 s: one usually comes every 2 s."
    assert said([0, 1, 1]) == [first, r"The slowest until then was b\x1b."]
    assert said([1, 0, -1]) == [first, "The slowest until then was a."]
    assert said([0, 0], workers=("a",)) == said([-1, -1]) == [first]
    assert said([*[1] * 30, *[0] * 11, *[1] * 9])[1:] == ["The slowest until then was a."]
    assert said([-1], usual=0.0) == ["No iteration has been reported for 90 s."]


@pytest.mark.parametrize(
    "made", [lambda: view._workers(RUNS["small"]), lambda: [async_view._workers(ASYNC_RUNS["small"])]]
)
def test_long_names_of_workers_wrap_so_that_no_number_is_cut(made):
    table = next(iter(made()))
    first, *others = table.columns
    assert (first.header, first.overflow, first.no_wrap) == ("worker", "fold", False)
    assert {(column.justify, column.no_wrap) for column in others} == {("right", True)}
    assert len(others) == 7
    assert (table.box, table.pad_edge, table.header_style) == (None, False, "dim")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("equal", "saved"),
    [
        ([2.0] * 22, "saves about 50 %"),
        ([0.5] * 22, "costs about 100 %"),
        ([1.0] * 22, "saves about 0 %"),
        ([9.0] * 21 + [2.0], "saves about 88 %"),
        ([NAN] * 22, "saves about 0 %"),
        ([*[NAN] * 20, 2.0, 0.0], "saves about 50 %"),
    ],
)
def test_the_state_of_a_run_is_that_of_its_last_twenty_iterations(equal, saved, known):
    asked = []
    waits = Waiting(share=0.5, from_workers=0.25, from_work=0.125, iterations=9 * known, of=9)
    run = SimpleNamespace(
        of_fleet={
            "index": np.arange(22.0),
            "wall_seconds": np.array([100.0, 100.0, *[2.0] * 19, 90.0]),
            "equal_seconds": np.array(equal),
        },
        makespan=np.array([50.0, 50.0, *[1.0] * 20]),
        waiting_share=np.array([0.9, 0.9, *[0.25] * 10, *[0.75] * 10]),
        waiting=lambda last: asked.append(last) or waits,
    )
    text = view._headline(run)
    told = (
        "iteration 21  2 s each, 1 s of it computing on the slowest\n"
        f"waiting 50 % of the computing time, {saved} against equal batches"
    )
    more = "\nit would be 25 % with equal work (uneven workers), 12 % with equal speeds (uneven samples)"
    assert str(text) == told + more * known
    assert asked == [20]
    assert [(span.start, span.end, span.style) for span in text.spans] == [(0, 12, "bold")]


def test_alarms_of_an_asynchronous_run_are_its_silence_its_refusals_and_its_losses():
    def said(seconds=(0.0, 2.0, 4.0), silent=0.0, refused=(0.0,), skipped=0, lost=0):
        fleet = {"refused": np.array(refused)}
        run = SimpleNamespace(seconds=np.array(seconds), of_fleet=fleet, skipped=skipped, lost=lost)
        found = async_view._alarms(run, silent)
        assert all(str(text.style) == "bold red" for text in found)
        return [str(text) for text in found]

    assert said(silent=10.0) == []
    assert said(silent=10.5) == ["No round has been reported for 10.5 s."]
    assert said(seconds=(0.0,), silent=3.0) == []
    assert said(seconds=(0.0,), silent=3.5) == ["No round has been reported for 3.5 s."]
    late = (0.0, *(1e6 + 2.0 * k for k in range(21)))
    assert said(seconds=late, silent=10.5) == ["No round has been reported for 10.5 s."]
    assert said(refused=(0.0, 3.0)) == ["3 samples of refused pushes: see the log."]
    assert said(refused=(3.0, 0.0)) == []
    assert said(skipped=1, lost=2) == [
        "1 line of the file could not be read.",
        "2 rounds could not be written to the file: was the disk full?",
    ]


@pytest.mark.parametrize(
    ("say", "number", "text"),
    [
        (short_numbers.speed, 1_005_001.0, "1.01 M/s"),
        (short_numbers.speed, 1_004_999.0, "1 M/s"),
        (short_numbers.speed, 999_999.4, "999,999/s"),
        (short_numbers.speed, 99.94, "99.9/s"),
        (short_numbers.samples, 10_500_001.0, "11 M"),
        (short_numbers.samples, 10_499_999.0, "10 M"),
        (short_numbers.time, 7200.0 * 1.005001, "2.01 h"),
        (short_numbers.time, 120.0 * 1.005001, "2.01 min"),
        (short_numbers.time, 172_800.0 * 1.005001, "2.01 days"),
    ],
)
def test_short_numbers_are_rounded_to_the_last_digit(say, number, text):
    assert say(number) == text


@pytest.mark.parametrize(
    ("workers", "more"), [(11, None), (12, None), (13, "1 others are fresher"), (15, "3 others are fresher")]
)
def test_the_twelve_workers_that_are_most_stale_have_a_row(workers, more):
    run = made_async_run(4, workers)
    cells = list(async_view._workers(run).columns[0].cells)
    stale = [np.nanmean(column) if np.isfinite(column).any() else -1.0 for column in run.of_workers["staleness"].T]
    order = sorted(range(workers), key=lambda w: -stale[w])
    rows = cells if more is None else cells[:-1]
    assert [str(cell) for cell in rows] == [run.workers[w] for w in order[:12]]
    if more is not None:
        assert (str(cells[-1]), cells[-1].style) == (more, "dim")


def test_a_worker_whose_staleness_is_not_known_comes_after_one_that_is_fresh():
    run = made_async_run(4, 3)
    stale = np.repeat([[NAN, 0.0, 2.0]], 4, axis=0)
    table = async_view._workers(replace(run, of_workers=run.of_workers | {"staleness": stale}))
    assert [str(cell) for cell in table.columns[0].cells] == [run.workers[w] for w in (2, 1, 0)]
    assert list(table.columns[2].cells) == ["2.0", "0.0", "-"]


@pytest.mark.parametrize(("workers", "more"), [(12, []), (13, ["1 others were waited for less"])])
def test_twelve_workers_have_a_row_and_the_others_are_counted(workers, more):
    _, *others = view._workers(made_run(5, workers, gaps=0.0))
    assert [str(text) for text in others] == more
