"""Sentences on the health of a trace, each at the share from which it is said and just short of it."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.health import Series, _about_series, health

FINE = {"name": "speed", "missing": 0.0, "longest_gap": 3, "constant": 0, "repeated": 0.0, "outliers": 0.0}
FINE |= {"variation": 0.1, "lag_one": 0.5, "predictable": 1.0}


def said(name="speed", **changed):
    return list(_about_series(Series(**{**FINE, "name": name, **changed}), name, 8))


@pytest.mark.parametrize(
    ("share", "bound", "beyond", "sentence"),
    [
        ("missing", 0.05, 0.051, "speed is missing in 5% of all entries; the longest gap is 3 iterations"),
        ("repeated", 0.2, 0.201, "speed equals the previous value in 20%: this flatters the last-value predictor"),
        ("outliers", 0.01, 0.0104, "speed has 1.0% outliers"),
        (
            *("predictable", 0.5, 0.49),
            "nothing to predict in speed beyond each worker's usual value: it looks like white noise in 4 of 8 workers",
        ),
        ("constant", 0, 1, "speed is constant in 1 of 8 workers"),
    ],
)
def test_a_share_beyond_its_bound_is_told_and_one_at_the_bound_is_not(share, bound, beyond, sentence):
    assert said() == said(**{share: bound}) == []
    assert said(**{share: beyond}) == [sentence]


def test_of_a_covariate_neither_repeats_nor_noise_are_told():
    assert said("load", repeated=1.0, predictable=0.0) == []
    assert said("load", outliers=0.5, missing=0.5) == [
        "load is missing in 50% of all entries; the longest gap is 3 iterations",
        "load has 50.0% outliers",
    ]


def test_of_a_series_without_a_value_or_a_change_nothing_else_is_told():
    rest = {"repeated": 1.0, "outliers": 1.0, "predictable": 0.0}
    assert said(missing=1.0, constant=8, **rest) == ["speed has no value"]
    assert said(missing=0.1, constant=8, **rest) == [
        "speed is constant in all workers",
        "speed is missing in 10% of all entries; the longest gap is 3 iterations",
    ]
    assert len(said(constant=7, **rest)) == 4


@pytest.mark.parametrize(
    ("reported", "told"), [([1], False), ([1, 0], True), ([1, 1], False), ([1, 0, 1], True), ([0, 1, 1], False)]
)
def test_a_speed_without_two_iterations_in_a_row_is_told_of_unless_there_is_only_one(reported, told):
    seconds = np.where(np.array(reported)[:, None], 1.0, np.nan)
    sentences = health(Trace(np.ones_like(seconds), seconds)).concerns
    assert any("no worker reported two consecutive iterations" in one for one in sentences) is told
