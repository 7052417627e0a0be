"""Results are shared: by plans, records, sinks and reports. Nobody changes one, and comparing two raises nothing."""

import importlib
from dataclasses import fields, is_dataclass

import pytest

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
