"""What is known of clients, whatever came before: forecasts are the predictor's own, of the clients as they are now."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated.clients import Known
from paceline.coordinator.federated.rounds import ForecastSource
from paceline.predictors import EWMA

NAMES = "abcde"
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sets(st.sampled_from(NAMES), min_size=1, max_size=3).map(sorted)),
        st.tuples(st.just("leave"), st.sets(st.sampled_from(NAMES), max_size=2).map(sorted)),
        st.tuples(st.just("observe"), st.integers(0, 99)),
    ),
    max_size=12,
)


@given(CHANGES)
@settings(max_examples=40)
def test_what_is_expected_of_a_client_is_what_its_predictor_forecasts_now(changes):
    known = Known(EWMA(), most=4, again=5)
    for round_index, (change, told) in enumerate([("join", ["a"]), *changes]):
        names = list(known.clients.names)
        if change == "join":
            known.join(told, round_index)
        elif change == "leave":
            known.leave([name for name in told if name in names])
        elif names:
            rng = np.random.default_rng(told)
            rows = np.flatnonzero(rng.random(len(names)) < 0.6)
            known.observe("speed", rows, np.full(len(rows), 8.0), rng.uniform(1, 9, len(rows)))
        rows = np.arange(len(known.clients.names))
        expected = known.expected("speed", rows, np.zeros(len(rows), dtype=int))
        own = expected.source == ForecastSource.OWN
        assert own.tolist() == (known.clients.column("computed") > 0).tolist()
        if own.any():
            forecast = known.predictors["speed"].predict()
            assert expected.speed[own].tolist() == forecast.speed[own].tolist()
            assert expected.spread[own].tolist() == forecast.spread[own].tolist()
