"""A name stands for one predictor."""

import pytest

from paceline.predictors import EWMA, LastValue, named, register
from paceline.predictors.named import kinds


def test_a_name_that_is_taken_is_refused_and_keeps_its_predictor():
    other = type("EWMA", (LastValue,), {"__module__": "mine"})
    with pytest.raises(ValueError, match=r"the name 'ewma' belongs to paceline.*EWMA: rename yours"):
        register(other)
    assert type(named("ewma")) is EWMA


def test_a_class_that_is_defined_once_more_takes_its_old_place():
    first, again = (type("Mine", (LastValue,), {"__module__": "mine"}) for _ in range(2))
    try:
        register(first)
        register(again)
        assert type(named("mine")) is again
    finally:
        del kinds["mine"]
