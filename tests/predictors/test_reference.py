"""The reference of a predictor: what its fit saw, added up in any order and parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors.fitting import Survey
from paceline.predictors.fitting import survey as surveys
from paceline.predictors.reference import FAR, Reference, Spread, changes

FEW = settings(max_examples=30)
NUMBERS = st.lists(st.floats(-1e3, 1e3) | st.sampled_from([np.nan, np.inf]), max_size=12).map(np.array)
SPEEDS = st.lists(st.lists(st.sampled_from([np.nan, 1.0, 2.0, 5.0, 80.0]), min_size=2, max_size=2), max_size=9)


def equal(one, other):
    assert one.count == other.count
    assert (one.mean, one.squares) == pytest.approx((other.mean, other.squares), abs=1e-6)


@FEW
@given(st.lists(NUMBERS, max_size=4))
def test_sum_of_spreads_is_spread_of_all(parts):
    total, everything = Spread(), np.concatenate([np.empty(0), *parts])
    known = everything[np.isfinite(everything)]
    for part in parts:
        total += Spread.of(part)
    equal(total, Spread.of(everything))
    assert total.count == len(known)
    assert total.mean == pytest.approx(known.mean() if len(known) else 0.0, abs=1e-9)
    usual = known.std() if len(known) and known.std() > 1e-6 else 1.0
    assert total.deviation == pytest.approx(usual, rel=1e-6)


def test_constant_values_deviate_by_one():
    assert Spread().deviation == Spread.of(np.full(9, 3.0)).deviation == 1.0
    assert Spread.of(np.array([0.0, 2e-11])).deviation == pytest.approx(1e-11)


@FEW
@given(SPEEDS)
def test_changes_are_log_steps_missing_at_gaps(rows):
    speed_TW = np.array(rows).reshape(-1, 2)
    found = changes(speed_TW)
    for k, w in np.ndindex(*found.shape):
        assert found[k, w] == pytest.approx(np.log(speed_TW[k + 1, w] / speed_TW[k, w]), nan_ok=True)
    assert np.isnan(changes(np.array([[0.0], [1.0], [np.inf]]))).all()


def test_value_unknown_beyond_five_deviations():
    spread = Spread(count=4, mean=2.0, squares=16.0)  # a deviation of 2
    reference = Reference(spread, (spread, Spread(count=1, mean=-1.0)))
    sides = np.array([-1.0, 1.0]) * FAR
    for past, unknown in ((0.0, False), (1e-9, True)):
        at = sides * (1 + past)
        assert reference.unknown_changes(2.0 + 2.0 * at).tolist() == [unknown] * 2
        covariates = np.stack([2.0 + 2.0 * at, -1.0 + at], axis=-1)
        assert (reference.unknown_covariates(covariates) == unknown).all()
    assert not reference.unknown_changes(np.array([np.nan])).any()


def test_reference_round_trip_and_sum():
    one, other = (Reference(Spread(n, 1.0, 2.0), (Spread(n, 3.0, 4.0), Spread())) for n in (3, 5))
    assert Reference.of_array(one.array()) == one
    total = one + other
    assert total.change == one.change + other.change
    assert total.covariates == tuple(a + b for a, b in zip(one.covariates, other.covariates, strict=True))
    with pytest.raises(ValueError, match="shorter"):
        one + Reference(Spread(), ())


@pytest.mark.parametrize("rows", [np.zeros(3), np.zeros((2, 4)), np.zeros((0, 3)), np.array([[1.0, np.nan, 0.0]])])
def test_what_is_no_reference_is_refused(rows):
    with pytest.raises(ValueError, match="a reference must hold finite rows of count, mean and squares, got"):
        Reference.of_array(rows)


@FEW
@given(SPEEDS.filter(len), st.integers(1, 5))
def test_survey_independent_of_block_size(rows, block):
    trace = surveyed_trace(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveys, "BLOCK", block)
        equal(Survey.of([trace]).change, Spread.of(changes(trace.speed)))


def surveyed_trace(rows):
    from paceline.datasets import Trace

    speed_TW = np.array(rows)
    return Trace(np.ones_like(speed_TW), 1.0 / speed_TW, covariates=speed_TW[..., None], covariate_names=["speed"])
