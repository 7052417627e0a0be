"""How records of a recorder are made, and what is left out of a call."""

import math
import time
from pathlib import Path

import pytest
from records import left_out, require_record

from paceline.recording.allowance import Allowance, Spent, lasting
from paceline.recording.clock_offset import clock_offset
from paceline.recording.control_group import ControlGroup, Whereabouts, mounted
from paceline.recording.covariates.followed import Followed
from paceline.recording.covariates.linux import (
    CPUBusy,
    MemoryAvailable,
    RunDelay,
    Runnable,
    _OfGroup,
    all_covariates,
    default_covariates,
)
from paceline.recording.covariates.quota import CPUQuota, Throttled
from paceline.recording.place import Place
from paceline.recording.recorder import Recorder
from paceline.recording.torch.busy_clock import NOTHING, Clock, Measure
from paceline.recording.torch.clocks import measure_offset
from paceline.recording.torch.forward_work import work_of
from paceline.recording.torch.samples import leading_size
from paceline.recording.torch.stopwatch import Stopwatch, _Iteration
from paceline.recording.torch.watch import Watch, watch

KINDS = [
    (ControlGroup, True, False, True),
    (Place, True, False, True),
    (_Iteration, False, False, True),
]

ROOT = {"root": Path("/")}
LEFT_OUT = [
    (ControlGroup, {"above": ()}),
    (Place, {"folders": (), "cores": ()}),
    (Spent, {"cpu": 0.0, "throttled": 0.0}),
    (
        _Iteration,
        {
            "samples": 0.0,
            "work": 0.0,
            "forward": [],
            "exchanges": [],
            "waits_forward": [],
            "waits_after": [],
            "stepping": None,
            "end": None,
        },
    ),
    (Clock, {"allowance": None, "threads": 1}),
    (Clock.forward, {"counts": True, "features": ()}),
    (lasting, {"threads": 1}),
    (Allowance, ROOT),
    (clock_offset, {"rounds": 8, "clock": time.time}),
    (measure_offset, {"clock": time.time}),
    (mounted, {"root": "/"}),
    (ControlGroup.of_this_process, {"root": "/"}),
    (ControlGroup.around_this_process, {"root": "/"}),
    (Whereabouts, {"root": "/"}),
    (Followed, {"any_group": False}),
    (_OfGroup.__call__, {"any_group": False}),
    *((kind, {"group": None, **ROOT}) for kind in (CPUBusy, Runnable, Throttled, default_covariates, all_covariates)),
    *((kind, ROOT) for kind in (RunDelay, MemoryAvailable, CPUQuota)),
    (Recorder, {"covariates": (), "meta": None, "first_iteration": 0}),
    (Recorder.write, {"work": math.nan}),
    (Recorder.iteration, {"work": math.nan}),
    (Stopwatch.forward, {"work": math.nan}),
    (watch, {"samples": leading_size, "work": work_of}),
    (Watch, {"samples": leading_size, "work": work_of}),
]


def test_measures_default_to_unknown():
    assert all(math.isnan(one) for one in Measure())
    assert len(Measure()) == 5
    assert Spent(0.0, 0.0) == NOTHING


@pytest.mark.parametrize(("kind", "frozen", "named", "alike"), KINDS)
def test_a_record_is_changed_made_and_compared_as_it_is_meant_to_be(kind, frozen, named, alike):
    require_record(kind, frozen, named, alike)


@pytest.mark.parametrize(("thing", "expected"), LEFT_OUT)
def test_what_is_left_out_of_a_call_is_this(thing, expected):
    assert left_out(thing) == expected
