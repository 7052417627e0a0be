"""`assign` names the rank whose curve or speed cannot be, and takes any that can."""

import numpy as np
import pytest

from paceline.predictors import Curves
from paceline.solver import assign

NO_LIMIT, NONE = np.full(2, np.inf), np.zeros(2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -1.0])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_curve_or_a_speed_that_cannot_be_is_named_with_its_rank(value, rank):
    given = np.where(np.arange(2) == rank, value, 1.0)
    with pytest.raises(ValueError, match=f"curves.slope must be finite and above 0, got {value:g} for rank {rank}"):
        assign([1.0, 2.0], Curves(slope=given, intercept=NONE, floor=NONE, limit=NO_LIMIT))
    with pytest.raises(ValueError, match=f"speeds must be finite and above 0, got {value:g} for rank {rank}"):
        assign([1.0, 2.0], given)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e-300])
@pytest.mark.parametrize("rank", [0, 1])
def test_fixed_seconds_that_cannot_be_are_named_with_their_rank(value, rank):
    given = np.where(np.arange(2) == rank, value, 0.0)
    for speeds, fixed in ((np.ones(2), given), (Curves(np.zeros(2), np.ones(2), given, NO_LIMIT), 0.0)):
        with pytest.raises(ValueError, match=f"fixed must be finite and not negative, got {value:g} for rank {rank}"):
            assign([1.0, 2.0], speeds, fixed=fixed)


@pytest.mark.parametrize("limit", [[4.0, np.inf], [np.inf, 0.0]])
def test_a_limit_in_samples_is_refused(limit):
    with pytest.raises(ValueError, match="curves with a limit count samples"):
        assign([1.0, 2.0], Curves(np.zeros(2), np.ones(2), np.zeros(2), np.array(limit)))
