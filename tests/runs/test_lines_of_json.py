"""The lines of a run's file, field by field: headers, iterations and rounds, with numbers of so many digits."""

import json
import math
from dataclasses import replace

import numpy as np
from recorded_runs import iterations

from paceline import __version__
from paceline.runs import JsonLines
from paceline.runs.json_numbers import all_known, known
from paceline.runs.json_rounds import about_round, header_of_rounds
from paceline.runs.round import Round

THIRD = 1 / 3


def test_numbers_have_seven_digits_behind_the_point_and_unknown_ones_are_null():
    assert (known(THIRD), known(2), known(1e-8), known(5.1e-8)) == (0.3333333, 2.0, 0.0, 1e-7)
    assert [known(value) for value in (math.nan, math.inf, -math.inf)] == [None] * 3
    assert all_known([1, THIRD, math.nan]) == [1.0, 0.3333333, None]
    assert all_known(np.array([], np.int64)) == []


def test_the_lines_of_an_iteration_say_all_of_it(tmp_path):
    *_, last = iterations(3)
    told = replace(
        last,
        time=1.7e9 + 1 / 3,
        wall_seconds=THIRD,
        overhead_seconds=THIRD / 1000,
        comm_seconds=np.array([THIRD, np.nan]),
        work=np.array([1.0, THIRD]),
        agreed=False,
        plan=replace(last.plan, drift=0.25),
    )
    for number, one in enumerate((last, told)):
        sink = JsonLines(tmp_path / str(number))
        sink(one)
        sink.close()
    plain, full = ([json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in "01")
    units = {"time": "seconds since the epoch", "sizes": "samples", "work": "average samples"}
    assert (
        plain[0]
        == full[0]
        == {
            "paceline_run": 1,
            "version": __version__,
            "workers": ["gpu0", "gpu1"],
            "global_batch": 60,
            "units": {**units, "all others": "seconds, or shares"},
        }
    )
    assert list(plain[2]) == list(full[2]) == ["ended"]
    assert round(full[2]["ended"], 3) == full[2]["ended"]
    known_of_both = {
        "index": 2,
        "sizes": last.sizes.tolist(),
        "seconds": all_known(last.seconds),
        "forecast_seconds": all_known(last.forecast_seconds),
        "equal_seconds": 0.06,
        "planned": last.plan.sizes.tolist(),
        "gain": known(last.plan.gain),
        "acted": last.plan.acted,
        "why": last.plan.why,
    }
    assert plain[1] == known_of_both | {
        "time": 1.7e9 + 2,
        "comm_seconds": [None, None],
        "wall_seconds": known(last.wall_seconds),
        "overhead_seconds": 0.0001,
        "agreed": True,
    }
    assert full[1] == known_of_both | {
        "time": 1700000000.333,
        "comm_seconds": [0.3333333, None],
        "wall_seconds": 0.3333333,
        "overhead_seconds": 0.0003333,
        "agreed": False,
        "work": [1.0, 0.3333333],
        "drift": 0.25,
        "equal_seconds": full[1]["equal_seconds"],
    }


def test_the_lines_of_a_round_say_all_of_it():
    record = Round(
        index=3,
        time=1.7e9 + THIRD,
        scheme="SAPS",
        bound=None,
        batch=8,
        workers=("a", "b"),
        version=7,
        applied=80,
        sizes=np.array([8, 4]),
        pushes=np.array([2, 0]),
        staleness=np.array([THIRD, np.nan]),
        expected=np.array([1.5, np.inf]),
        done=np.array([64, 16]),
        wasted=np.array([0, 8]),
        waited=np.array([0.0, THIRD]),
        dropped=1,
        abandoned=2,
        refused=3,
        wasted_share=THIRD,
        forecast=math.nan,
        actual=0.5,
        covered=1.0,
        largest=4,
        stragglers=("b",),
        acted=True,
        why="b is late",
    )
    assert header_of_rounds(record) == {
        "paceline_async_run": 1,
        "version": __version__,
        "workers": ["a", "b"],
        "scheme": "SAPS",
        "bound": None,
        "batch": 8,
        "units": {
            "time": "seconds since the epoch",
            "waited": "seconds",
            "staleness, expected, forecast, actual, largest, bound": "versions",
            "sizes, done, wasted, applied, dropped, abandoned, refused, batch": "samples",
            "wasted_share, covered": "share",
        },
    }
    assert about_round(record) == {
        "index": 3.0,
        "time": 1700000000.333,
        "version": 7.0,
        "applied": 80.0,
        "dropped": 1.0,
        "abandoned": 2.0,
        "refused": 3.0,
        "wasted_share": 0.3333333,
        "forecast": None,
        "actual": 0.5,
        "covered": 1.0,
        "largest": 4.0,
        "sizes": [8.0, 4.0],
        "pushes": [2.0, 0.0],
        "staleness": [0.3333333, None],
        "expected": [1.5, None],
        "done": [64.0, 16.0],
        "wasted": [0.0, 8.0],
        "waited": [0.0, 0.3333333],
        "stragglers": ["b"],
        "acted": True,
        "why": "b is late",
    }
