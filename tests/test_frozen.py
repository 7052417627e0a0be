"""Results are shared: by plans, records, sinks and reports. Nobody changes one, and comparing two raises nothing."""

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass

import pytest

import paceline

ROOMS = ("predictors", "solver", "eval", "coordinator", "datasets")
ARRAYS = ("Array", "Sizes", "Curves", "Split", "DataFrame", "ReplayedIteration", "Replay")
"""Types of which == gives no single truth, or that hold such; generated equality would raise."""


def results():
    rooms = [importlib.import_module(f"paceline.{room}") for room in ROOMS]
    public = {getattr(room, name) for room in rooms for name in room.__all__}
    return sorted((one for one in public if isinstance(one, type) and is_dataclass(one)), key=lambda one: one.__name__)


@pytest.mark.parametrize("result", results(), ids=lambda one: one.__name__)
def test_a_result_is_frozen_and_compared_as_an_object_where_it_holds_arrays(result):
    settings = result.__dataclass_params__
    assert settings.frozen
    if any(name in str(field.type) for field in fields(result) for name in ARRAYS):
        assert not settings.eq


CHANGING = """
Account AdaptiveCompensator Calibration ClientJob Forgone Gathered Inquiry Member Position SGD Seen Service Situation
Tape TapedStep Workers _Asked _Descent _Iteration _Lap _Metrics _Wait _Worker
"""
"""Those that change as they are used."""

ELSEWHERE = ("__main__", ".flower", ".ray", "bootstrap")
"""Parts of the names of modules that need other libraries, or that do something when they are imported."""


def all_dataclasses():
    modules = [one.name for one in pkgutil.walk_packages(paceline.__path__, "paceline.")]
    for name in [one for one in modules if not any(part in one for part in ELSEWHERE)]:
        for one in vars(importlib.import_module(name)).values():
            if isinstance(one, type) and one.__module__ == name and "__dataclass_params__" in vars(one):
                yield one


def test_a_dataclass_is_frozen_unless_it_changes_as_it_is_used():
    assert sorted(one.__name__ for one in all_dataclasses() if not one.__dataclass_params__.frozen) == CHANGING.split()


HOLDS_ARRAYS = re.compile(r"Array|Sizes|Mask|Curves|Split|DataFrame|Tensor|Vector|Replay|Estimate|Stamp")
COMPARED = "ChartBand ChartLine Position TableFile Tape TapedStep Task Usage _Worker"
"""Those with arrays that nobody compares, in rooms that hold no results."""

SAME_ONLY = "Costs Forgone Gathered Member Push Seen Service Standing Turn Windows Workers _Lap _Wait"
"""Those without arrays of their own that stand for one thing, which nothing else equals."""


def test_a_dataclass_with_arrays_generates_no_equality_which_would_raise():
    generates = {
        (one.__name__, holds): one.__dataclass_params__.eq
        for one in all_dataclasses()
        for holds in [any(HOLDS_ARRAYS.search(str(field.type)) for field in fields(one))]
    }
    assert sorted(name for (name, holds), eq in generates.items() if holds and eq) == COMPARED.split()
    assert sorted(name for (name, holds), eq in generates.items() if not holds and not eq) == SAME_ONLY.split()


BY_NAME = """
Arrangement AsyncSetting AuditPlan AuditVerdict BalancedRun Contention Course Disturbance Entry Fitting Format Health
Iteration Job Layout Lead Policy Population RemoteSet Round RoundBounds RoundPlan RoundReport RoundSetting Scheme
Series Setting Simulation Slowness StalenessReport TableFile Training Verdict Waiting Worth
"""
"""Those of many fields of one type, which a caller names."""


def test_fields_that_could_be_mixed_up_are_given_by_name():
    assert sorted(one.__name__ for one in all_dataclasses() if any(field.kw_only for field in fields(one))) == (
        BY_NAME.split()
    )
