"""Each range that a constructor names holds to its very ends, and the next number beyond is refused with its name."""

import math
from functools import partial

import numpy as np
import pytest

from paceline.coordinator import Policy
from paceline.coordinator.asynchronous import SGD, Scheme
from paceline.coordinator.asynchronous.rules import Adaptive, Bounded, Constant, Ranged
from paceline.coordinator.asynchronous.rules.batch_rules import ByForecast
from paceline.coordinator.federated import FederatedBalancer
from paceline.predictors import EWMA, BatchTime, Boosting, ChangePoint, Holt, LocalLevel

TINY, HUGE, NAN, INF = 5e-324, 1.7976931348623157e308, math.nan, math.inf
ONE_LESS, ONE_MORE, TWO_MORE = np.nextafter(1.0, 0.0), np.nextafter(1.0, 2.0), np.nextafter(2.0, 3.0)

NOT_NEGATIVE = ([0, TINY, HUGE], [-TINY, NAN])
SHARE = ([0, ONE_LESS], [-TINY, 1, NAN])
WEIGHT = ([TINY, 1], [0, ONE_MORE, NAN])
POSITIVE = ([TINY, HUGE], [0, -1, INF, NAN])
COUNT = ([1, 2], [0, -1])

federated = partial(FederatedBalancer, batch=16)
rounds = partial(federated, local_steps=4)
RANGES = [
    (Bounded, "slack", [0, 1], [-1]),
    (Constant, "strength", *NOT_NEGATIVE),
    (Adaptive, "strength", *NOT_NEGATIVE),
    (Adaptive, "memory", *SHARE),
    (ByForecast, "first", *WEIGHT),
    (SGD, "rate", *POSITIVE),
    (partial(SGD, 0.1), "momentum", *SHARE),
    (partial(Scheme, name="x"), "bound", [0, 1, None], [-1]),
    (Policy, "warmup", [0, 1], [-1]),
    (Policy, "change_cost", [0, TINY, HUGE], [-TINY, INF, NAN]),
    (Policy, "batch_multiple", *COUNT),
    (Policy, "risk", [0, 2, "auto"], [-TINY, TWO_MORE, NAN, "none"]),
    (Policy, "lower", [0, 1, {"a": 0}], [-1, {"a": 1, "b": -1}]),
    (Policy, "upper", [0, 1, None, {"a": 0}], [-1, {"a": 1, "b": -1}]),
    (partial(FederatedBalancer, local_steps=4), "batch", *COUNT),
    (federated, "local_steps", *COUNT),
    (federated, "local_epochs", *POSITIVE),
    (rounds, "least", [1, 16], [0, 17]),
    (rounds, "largest", [1, HUGE], [ONE_LESS, INF, NAN]),
    (rounds, "risk", [0, 2], [-TINY, TWO_MORE, NAN]),
    (rounds, "plausible", [ONE_MORE, INF], [1, NAN]),
    (rounds, "deadline", [*POSITIVE[0], None], POSITIVE[1]),
    (rounds, "try_again", *COUNT),
    (rounds, "most_clients", *COUNT),
    (EWMA, "smoothing", *WEIGHT),
    (Holt, "trend_smoothing", [0, 1], [-TINY, ONE_MORE, NAN]),
    (ChangePoint, "smoothing", *WEIGHT),
    (ChangePoint, "threshold", [TINY, INF], [0, NAN]),
    (LocalLevel, "smoothing", *WEIGHT),
    (Boosting, "learning_rate", *WEIGHT),
    (Boosting, "lags", [2], [1]),
    (Boosting, "covariate_lags", [0], [-1]),
    (Boosting, "trees", [1], [0]),
    (Boosting, "leaves", [2], [1]),
    (BatchTime, "probing", *SHARE),
    (BatchTime, "overlap", [1, 2, None], [ONE_LESS, NAN]),
    (BatchTime, "near", [TINY, HUGE, None], [0, NAN]),
]


@pytest.mark.parametrize(("make", "name", "inside", "outside"), RANGES, ids=lambda one: one if type(one) is str else "")
def test_a_range_holds_to_its_ends_and_no_further(make, name, inside, outside):
    for value in inside:
        assert getattr(make(**{name: value}), name) == value
    for value in outside:
        with pytest.raises(ValueError, match=rf"\b{name} must\b"):
            make(**{name: value})


def test_two_bounds_of_a_slack_may_be_equal_but_not_cross():
    for low, high in ((0, 0), (3, 3), (0, 9)):
        assert (Ranged(low, high).low, Ranged(low, high).high) == (low, high)
    for low, high in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match=f"low and high must be 0 or more and in this order, got {low} and {high}"):
            Ranged(low, high)
