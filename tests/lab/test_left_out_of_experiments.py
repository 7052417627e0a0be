"""How records of the lab are made, and what is left out of a call."""

import pytest
from records import left_out, require_record

from paceline.lab import Contention, Job, Usage, places
from paceline.lab.collect.command import Recorded
from paceline.lab.contention.disturbance import Disturbance, Hogs, Quota
from paceline.lab.contention.patterns import Competitor
from paceline.lab.contention.usage import load_without_averaging
from paceline.lab.experiment import AsyncSetting, ExperimentOutcome, Setting
from paceline.lab.experiment.asynchronous import AsyncOutcome, AsyncRow, AsyncTurn
from paceline.lab.experiment.experiment_tasks import LiveTask
from paceline.lab.experiment.experiment_worker import take_turn
from paceline.lab.experiment.outcome import Row
from paceline.lab.experiment.result import IterationSeen, RankResult, TurnSeen
from paceline.lab.processes.places import remove_stale
from paceline.lab.small_models import Task, _photo_patches

PLACED = [Usage, Competitor, Quota, Hogs, Task, AsyncTurn, AsyncRow, AsyncOutcome, TurnSeen, IterationSeen, RankResult]
PLACED += [Row, ExperimentOutcome, LiveTask, Recorded]
NAMED = [Disturbance, Contention, AsyncSetting, Setting, Job]
KINDS = [(kind, True, False, True) for kind in PLACED] + [(kind, True, True, True) for kind in NAMED]

SETTING = {
    "contention": "quota",
    "schemes": ("auto",),
    "model": "digits-cnn",
    "global_batch": 896,
    "rounds": 4,
    "seconds": 3.0,
    "seed": 0,
    "device": "cpu",
    "precision": "single",
}
CONTENTION = {"competitors": 1, "kind": "cpu", "quota": 0.4, "seed": 0}
LEFT_OUT = [
    (Setting, SETTING),
    (AsyncSetting, SETTING | {"schemes": ("saps", "asp", "bsp")}),
    (Job, {**CONTENTION, "workers": 4, "iterations": 1500, "split": "fit"}),
    (Contention, {**CONTENTION, "usage": None}),
    (Disturbance, {"quota": None, "hogs": 0, "kernels": False, "between": 0.0, "bursts": None}),
    (Usage, {"source": "given"}),
    (Usage.of_trace, {"slot_seconds": None}),
    (load_without_averaging, {"interval_seconds": 5.0}),
    (LiveTask, {"loss": "mean"}),
    (take_turn, {"between": 0.0}),
    (places, {"root": "/"}),
    (remove_stale, {"root": "/"}),
    (_photo_patches, {"each": 1000}),
]


@pytest.mark.parametrize(("kind", "frozen", "named", "alike"), KINDS)
def test_a_record_is_changed_made_and_compared_as_it_is_meant_to_be(kind, frozen, named, alike):
    require_record(kind, frozen, named, alike)


@pytest.mark.parametrize(("thing", "expected"), LEFT_OUT)
def test_what_is_left_out_of_a_call_is_this(thing, expected):
    assert left_out(thing) == expected
