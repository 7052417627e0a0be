"""What all networks share: what they need, how they are trained, when they write down how far they are."""

import sys

import numpy as np
import pytest

from paceline.predictors import (
    ARIMA,
    LSTM,
    NARX,
    Auto,
    GatedNARX,
    SimpleRNN,
    Training,
    checks,
)
from paceline.training import FitProgress, fit

LATER = {"torch": [NARX, GatedNARX, SimpleRNN, LSTM, Auto]}
LATER |= {"statsmodels": [lambda: ARIMA(order=(1, 0, 0), method="likelihood")]}
EXTRAS = {"torch": "torch", "statsmodels": "arima"}


@pytest.mark.parametrize("fits", [lambda model, trace: model.fit([trace]), lambda model, trace: fit(model, [trace])])
@pytest.mark.parametrize(("library", "make"), [(library, make) for library, kinds in LATER.items() for make in kinds])
def test_missing_library_named_by_fit(monkeypatch, library, make, fits):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"`{library}` is needed by .*\[{EXTRAS[library]}\]"):
        fits(make(), checks.example_trace())


@pytest.mark.parametrize("name", ["epochs", "patience", "batch_size"])
def test_training_refuses_counts_below_one(name):
    assert getattr(Training(**{name: 1}), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Training(**{name: 0})


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1, np.nan])
def test_training_refuses_validation_share(share):
    assert Training(validation=0.999).validation == 0.999
    with pytest.raises(ValueError, match=r"validation must lie in \(0, 1\), got"):
        Training(validation=share)


@pytest.mark.parametrize(("rate", "left"), [(4.0, 2.5), (0.0, np.nan), (np.nan, np.nan)])
def test_seconds_left_at_current_rate(rate, left):
    assert FitProgress("read", done=10, total=20, rate=rate).seconds_left == pytest.approx(left, nan_ok=True)
