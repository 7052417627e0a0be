"""How records of runs are made, and what is left out of a call."""

import dataclasses
import inspect
import math

import pytest

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
    left_out = defaults(Iteration.of)
    assert math.isnan(left_out.pop("wall_seconds"))
    assert left_out == {"index": None, "time": None, "overhead_seconds": 0.0}
    assert Sink()._ended is False


def parameters(thing):
    return inspect.signature(thing).parameters.values()


def defaults(thing):
    """What is left out of a call, by name; made anew for each where a record has a list or a dictionary."""
    found = {one.name: one.default for one in parameters(thing) if one.default is not inspect.Parameter.empty}
    made = (
        {one.name: one.default_factory for one in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else {}
    )
    anew = {name: made[name]() for name in found if made.get(name, dataclasses.MISSING) is not dataclasses.MISSING}
    return found | anew


@pytest.mark.parametrize(("kind", "frozen", "named", "alike"), KINDS)
def test_a_record_is_changed_made_and_compared_as_it_is_meant_to_be(kind, frozen, named, alike):
    """Frozen or not, by names alone or by places too, and the same as another with the same parts or not."""
    name = dataclasses.fields(kind)[0].name
    one = object.__new__(kind)
    if frozen:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 1)
    else:
        setattr(one, name, 1)
        assert getattr(one, name) == 1
    places = {one.kind for one in parameters(kind)}
    by_name, by_place = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert places == ({by_name} if named else {by_place})
    assert (kind.__eq__ is not object.__eq__) is alike


@pytest.mark.parametrize(("thing", "expected"), LEFT_OUT)
def test_what_is_left_out_of_a_call_is_this(thing, expected):
    assert defaults(thing) == expected
