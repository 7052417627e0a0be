"""How records of runs are made, and what is left out of a call."""

import math

import pytest
from records import left_out, require_record

from paceline.runs import Logging, Prometheus
from paceline.runs.async_run import AsyncRun, RoundLine
from paceline.runs.growing import GrowingFile
from paceline.runs.iteration import Iteration
from paceline.runs.prometheus import Family, _Metrics
from paceline.runs.round import Round
from paceline.runs.run import Run
from paceline.runs.sink import Sink

KINDS = [
    (Iteration, True, True, False),
    (Round, True, True, False),
    (RoundLine, True, False, False),
    (AsyncRun, True, False, False),
    (Run, True, False, False),
    (Family, True, False, True),
    (_Metrics, False, False, True),
]

LEFT_OUT = [
    (Iteration, {"work": None}),
    (AsyncRun, {"skipped": 0, "lost": 0}),
    (Run, {"skipped": 0, "lost": 0}),
    (Run.of_lines, {"skipped": 0, "lost": 0}),
    (Run.waiting, {"last": None}),
    (_Metrics, {"gauges": {}, "of_workers": {}, "counters": {}}),
    (Logging, {"every": 100}),
    (Prometheus, {"port": None, "address": "127.0.0.1", "registry": None}),
    (GrowingFile, {"keep": None}),
    (GrowingFile.kept, {"last": None}),
]


def test_an_iteration_of_which_nothing_more_is_known_took_no_time_to_balance():
    found = left_out(Iteration.of)
    assert math.isnan(found.pop("wall_seconds"))
    assert found == {"index": None, "time": None, "overhead_seconds": 0.0}
    assert Sink()._ended is False


@pytest.mark.parametrize(("kind", "frozen", "named", "alike"), KINDS)
def test_a_record_is_changed_made_and_compared_as_it_is_meant_to_be(kind, frozen, named, alike):
    require_record(kind, frozen, named, alike)


@pytest.mark.parametrize(("thing", "expected"), LEFT_OUT)
def test_what_is_left_out_of_a_call_is_this(thing, expected):
    assert left_out(thing) == expected
