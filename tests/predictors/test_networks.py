"""What all networks share: what they need, how they are trained, when they write down how far they are."""

import dataclasses
import importlib
import pkgutil
import sys

import numpy as np
import pytest

import paceline.predictors
from paceline.predictors import (
    ARIMA,
    GRU,
    LSTM,
    NARX,
    Auto,
    BarrierHead,
    Boosting,
    GatedNARX,
    SimpleRNN,
    Training,
    checks,
)
from paceline.predictors.fitting import Moment
from paceline.predictors.networks import training_windows
from paceline.predictors.networks.neural import Examples
from paceline.training import fit

LATER = {"torch": [NARX, GatedNARX, lambda: BarrierHead(pretrained=True), SimpleRNN, LSTM, GRU, Auto]}
LATER |= {"sklearn": [Boosting], "statsmodels": [lambda: ARIMA(order=(1, 0, 0), method="likelihood")]}
EXTRAS = {"torch": "torch", "sklearn": "boosting", "statsmodels": "arima"}


@pytest.mark.parametrize("fits", [lambda model, trace: model.fit([trace]), lambda model, trace: fit(model, [trace])])
@pytest.mark.parametrize(("library", "make"), [(library, make) for library, kinds in LATER.items() for make in kinds])
def test_a_library_that_only_a_fit_needs_is_named_by_whoever_fits_without_it(monkeypatch, library, make, fits):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"`{library}` is needed by .*\[{EXTRAS[library]}\]"):
        fits(make(), checks.example_trace())


@pytest.mark.parametrize("name", ["epochs", "patience", "batch_size", "closed_loop"])
def test_a_training_of_less_than_one_of_anything_is_refused(name):
    assert getattr(Training(**{name: 1}), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Training(**{name: 0})


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1, np.nan])
def test_a_share_that_validates_all_or_nothing_is_refused(share):
    assert Training(validation=0.999).validation == 0.999
    with pytest.raises(ValueError, match=r"validation must lie in \(0, 1\), got"):
        Training(validation=share)


@pytest.mark.parametrize(
    ("examples", "size"), [(1, 256), (256_999, 256), (257_000, 257), (4_095_999, 4095), (10**9, 4096)]
)
def test_a_pass_has_about_a_thousand_steps_of_bounded_size(examples, size):
    assert Training().batch_of(examples) == size
    assert Training(batch_size=7).batch_of(examples) == 7


@pytest.mark.parametrize(("rate", "left"), [(4.0, 2.5), (0.0, np.nan), (np.nan, np.nan)])
def test_the_time_left_is_that_of_what_is_left_at_this_rate(rate, left):
    assert Moment("read", done=10, total=20, rate=rate).seconds_left == pytest.approx(left, nan_ok=True)


def classes():
    for found in pkgutil.walk_packages(paceline.predictors.__path__, "paceline.predictors."):
        yield from vars(importlib.import_module(found.name)).values()


@pytest.mark.slow
def test_what_holds_arrays_is_compared_by_identity_and_can_be_a_key():
    """Arrays have no truth value: a comparison by fields would fail, and so would a hash."""
    pytest.importorskip("torch", reason="modules that fit import it")
    for kind in {one for one in classes() if isinstance(one, type) and dataclasses.is_dataclass(one)}:
        if any("Array" in str(field.type) or "NDArray" in str(field.type) for field in dataclasses.fields(kind)):
            assert kind.__eq__ is object.__eq__, kind
            assert kind.__hash__ is object.__hash__, kind


def test_progress_is_told_at_most_five_times_a_second(monkeypatch):
    pytest.importorskip("torch", reason="needs the torch extra")
    from paceline.predictors.networks import descent

    now, told = [0.0], []
    run = object.__new__(descent._Descent)
    fitting = type("Fitting", (), {"tell": staticmethod(told.append)})
    windows = type("Windows", (), {"validating": 10, "__len__": lambda self: 110})()
    run.fitting, run.windows, run.training, run.told = fitting, windows, Training(epochs=3), 0.0
    run.at, run.began = descent.Position(epoch=1, windows=0, best_loss=7.0), (0.0, 100)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    for now[0] in (0.1, 0.2, 0.3, 0.4):
        run._tell(5, 2.0)
    assert [(moment.done, moment.total, moment.loss, moment.held_out) for moment in told] == [
        (110, 300, 2.0, 7.0),
        (120, 300, 2.0, 7.0),
    ]
    assert [moment.rate for moment in told] == pytest.approx([10 / 0.2, 20 / 0.4])


@pytest.mark.parametrize(("memory", "written"), [(1, True), (0, False)])
def test_windows_are_written_only_where_they_do_not_fit_into_memory(monkeypatch, memory, written):
    folders, make = [], training_windows.TemporaryFolder
    monkeypatch.setattr(training_windows, "TemporaryFolder", lambda: folders.append(1) or make())
    examples = Examples(np.arange(8.0).reshape(4, 2), np.arange(4.0), np.arange(4) > 2)
    size = 4 * training_windows._kind(examples).itemsize
    windows = training_windows.windows_of([("a", [examples])], 4, memory=size - memory, seed=0)
    assert bool(folders) == written
    assert sorted(target for shard in windows.shards for target in shard()["targets"]) == [0.0, 1.0, 2.0, 3.0]
    assert (len(windows), windows.validating, windows.width("inputs")) == (4, 1, 2)


def test_groups_hold_the_windows_of_their_rows_and_count_as_their_first():
    examples = Examples(np.arange(8.0).reshape(4, 2), np.arange(4.0), np.array([True, False, True, False]))
    (shard,) = training_windows.windows_of([("a", [examples])], 4, memory=10**6, seed=0).shards
    rows_NG = np.array([[0, 2], [3, 1]])
    groups = training_windows.grouped(shard(), rows_NG)
    np.testing.assert_array_equal(groups["inputs"], examples.inputs[rows_NG])
    np.testing.assert_array_equal(groups["targets"], examples.targets[rows_NG])
    assert groups["validates"].tolist() == [True, False]
