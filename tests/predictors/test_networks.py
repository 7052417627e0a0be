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
from paceline.predictors.networks import training_windows
from paceline.predictors.networks.neural import Examples
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


@pytest.mark.parametrize(("memory", "written"), [(1, True), (0, False)])
def test_windows_spill_only_beyond_memory(monkeypatch, memory, written):
    folders, make = [], training_windows.TemporaryFolder
    monkeypatch.setattr(training_windows, "TemporaryFolder", lambda: folders.append(1) or make())
    examples = Examples(np.arange(8.0).reshape(4, 2), np.arange(4.0), np.arange(4) > 2)
    size = 4 * training_windows.windows_of([("a", [examples])], 4, memory=10**6, seed=0).kind.itemsize
    windows = training_windows.windows_of([("a", [examples])], 4, memory=size - memory, seed=0)
    assert bool(folders) == written
    assert sorted(target for shard in windows.shards for target in shard()["targets"]) == [0.0, 1.0, 2.0, 3.0]
    assert (len(windows), windows.validating, windows.width("inputs")) == (4, 1, 2)
