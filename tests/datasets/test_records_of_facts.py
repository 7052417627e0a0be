"""Records of facts never change once they are made, are told by the names of their fields, and are equal by them."""

import dataclasses
import inspect

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.health import Health, Series
from paceline.datasets.readers.arrangement import Arrangement
from paceline.datasets.readers.format import Format
from paceline.datasets.readers.panel import Layout
from paceline.datasets.readers.tables import TableFile
from paceline.datasets.waiting_time import Waiting

BY_NAME = (Arrangement, TableFile, Layout, Format, Waiting, Series, Health)


@pytest.mark.parametrize("kind", [*BY_NAME, Trace])
def test_a_record_of_facts_never_changes(kind):
    one = object.__new__(kind)
    name = dataclasses.fields(kind)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(one, name)


@pytest.mark.parametrize("kind", BY_NAME)
def test_facts_are_told_by_their_names(kind):
    kinds = {one.kind for one in inspect.signature(kind).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_traces_are_told_apart_by_what_they_are_as_arrays_cannot_be():
    one, same = (Trace(np.ones((1, 1)), np.ones((1, 1))) for _ in range(2))
    assert one != same
    assert len({one, same, one}) == 2
