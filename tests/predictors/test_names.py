"""A name stands for one predictor."""

import pytest

from paceline.predictors import ARIMA, EWMA, LSTM, NARX, RLS, Auto, LastValue, named, register


def test_taken_name_refused():
    other = type("EWMA", (LastValue,), {"__module__": "mine"})
    with pytest.raises(ValueError, match=r"the name 'ewma' is already registered for paceline.*EWMA: rename"):
        register(other)
    assert type(named("ewma")) is EWMA


def test_redefined_class_replaces_itself():
    first, again = (type("DefinedTwice", (LastValue,), {"__module__": "mine"}) for _ in range(2))
    register(first)
    register(again)
    assert type(named("defined-twice")) is again


@pytest.mark.parametrize("kind", [ARIMA, Auto, LSTM, NARX, RLS], ids=lambda kind: kind.__name__)
def test_text_refused_as_covariates(kind):
    with pytest.raises(ValueError, match=r"covariates must be a list of names such as \['cpu_busy'\], got 'cpu_busy'"):
        kind(covariates="cpu_busy")
    assert kind(covariates=["cpu_busy"]).covariates == ("cpu_busy",)


@pytest.mark.parametrize(
    "text", ["8", "8,smoothing=0.5", ")+(", "smoothing=", "*[0.5]", "smoothing=open('x')", "0.5) if f(", "a b"]
)
def test_malformed_arguments_refused(text):
    with pytest.raises(ValueError, match=r" must be arguments like lags=8,hidden=16"):
        named(f"ewma:{text}")
