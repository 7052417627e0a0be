"""Where exactly a check of the contract draws the line, and that no part of what it requires may break."""

import pickle

import numpy as np
import pytest
from broken_predictors import off_by, passes

from paceline.predictors import EWMA, Forecast, LastValue, checks


@pytest.mark.parametrize(
    ("name", "limits"), [("survives_jumps", (0.5, 2.0)), ("silence_is_survived", (0.8, 1.25))], ids=str
)
def test_a_forecast_that_is_off_by_the_limit_itself_is_too_far_off(name, limits):
    assert [passes(off_by(limit), name) for limit in limits] == [False, False]


class Sized:
    """Takes the memory that it is told to take, before and after the thousand further reports."""

    few, many, reports = 1000, 1000, 0

    def reset(self, workers):
        self.reports = 0

    def observe(self, report):
        self.reports += 1

    def __reduce__(self):
        return str, ("x" * ((self.few if self.reports <= 100 else self.many) - UNPADDED),)


UNPADDED = len(pickle.dumps(type("Padded", (), {"__reduce__": lambda self: (str, ("x" * 1000,))})())) - 1000


@pytest.mark.parametrize(("few", "many", "kept"), [(1000, 1220, True), (1000, 1221, False), (10000, 10400, True)])
def test_memory_may_grow_by_a_fiftieth_and_two_hundred_bytes(few, many, kept):
    kind = type("SizedSo", (Sized,), {"few": few, "many": many})
    assert len(pickle.dumps(kind())) == few
    assert passes(kind, "memory_is_bounded") == kept


class Knows(LastValue):
    """Knows what it has been called for; its forecast may depend on it."""

    def __init__(self):
        super().__init__()
        self.calls, self.missing = [], np.zeros(3, dtype=bool)

    def observe(self, report):
        super().observe(report)
        self.calls.append("observe")
        self.missing = np.isnan(report.speed)

    def predict(self, covariates=None, *, horizon=1):
        forecast = super().predict(covariates, horizon=horizon)
        speed, spread = self.changed(forecast.speed, forecast.spread.copy(), horizon)
        self.calls.append("predict")
        return Forecast(speed, spread)


def written_down(name):
    def called(model, *arguments):
        getattr(LastValue, name)(model, *arguments)
        model.calls.append(name)

    return called


for name in ("reset", "join", "leave", "rename"):
    setattr(Knows, name, written_down(name))


def unsure_of(place, when):
    def changed(model, speed, spread, horizon):
        if when(model, horizon) and place < len(spread):
            spread[place] /= 4.0
        return speed, spread

    return changed


def finite_at(place, when):
    def changed(model, speed, spread, horizon):
        if when(model, horizon):
            spread[place] = 0.1
        return speed, spread

    return changed


def slower_at(place, when):
    def changed(model, speed, spread, horizon):
        return speed * np.where((np.arange(len(speed)) == place) & when(model, horizon), 1.0 - 1e-7, 1.0), spread

    return changed


def three_of_four(model, speed, spread, horizon):
    return speed[:3], spread[:3]


BROKEN = [
    (
        "predict_is_pure",
        unsure_of(0, lambda model, horizon: model.calls.count("predict") % 3 == 1),
        "predict gave two different answers in a row",
    ),
    (
        "a_silent_worker_gets_a_usable_forecast",
        finite_at(2, lambda model, horizon: model.missing[2]),
        "a worker that never reported has a finite spread",
    ),
    ("joining_leaves_others_alone", three_of_four, "the forecast does not cover the worker that joined"),
    (
        "leaving_leaves_others_alone",
        finite_at(2, lambda model, horizon: "leave" in model.calls and "join" in model.calls),
        "a worker that came back was not forgotten",
    ),
    (
        "renaming_keeps_what_was_learnt",
        unsure_of(0, lambda model, horizon: model.calls[-1] == "rename"),
        "rename changed a forecast",
    ),
    (
        "renaming_keeps_what_was_learnt",
        finite_at(-1, lambda model, horizon: model.calls[-1] == "join"),
        "the old name was not given up",
    ),
    (
        "silence_is_survived",
        unsure_of(0, lambda model, horizon: model.missing[0]),
        "silence made a forecast more certain",
    ),
    *(
        (
            "a_silent_worker_leaves_others_alone",
            slower_at(place, lambda model, horizon: model.missing[0]),
            "a silent worker changed the forecasts of the others",
        )
        for place in (1, 2)
    ),
    (
        "reset_forgets",
        finite_at(1, lambda model, horizon: model.calls[-1] == "reset" and len(model.calls) > 2),
        "reset left a memory behind",
    ),
    (
        "reset_forgets",
        unsure_of(1, lambda model, horizon: model.calls[-1] == "observe" and model.calls.count("reset") > 1),
        "reset left a memory behind",
    ),
    *(
        (
            "further_horizons_are_usable",
            unsure_of(place, lambda model, horizon: horizon == 10),
            "the forecast ten iterations ahead is more certain than one ahead",
        )
        for place in range(3)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changed", "sentence"), BROKEN)
def test_each_sentence_of_the_contract_is_required_by_itself(name, changed, sentence):
    assert passes(type("Plain", (Knows,), {"changed": lambda model, speed, spread, horizon: (speed, spread)}), name)
    with pytest.raises(checks.ContractBrokenError, match=sentence):
        checks.run(type("Broken", (Knows,), {"changed": changed}), [name])


def forgetting(copied_by):
    class Forgetting(EWMA):
        def __deepcopy__(self, memo):
            return self._copied(copied_by == "deepcopy")

        def __reduce__(self):
            return _same, (self._copied(copied_by == "pickle"),)

        def _copied(self, forgets):
            copied = EWMA()
            copied.load_state_dict(self.state_dict())
            if forgets:
                copied.reset(self.workers)
            return copied

    return Forgetting


def _same(model):
    return model


@pytest.mark.parametrize(
    ("copied_by", "sentence"),
    [("deepcopy", "a deep copy forecasts differently"), ("pickle", "an unpickled predictor forecasts differently")],
)
def test_a_copy_of_either_kind_must_know_what_the_original_does(copied_by, sentence):
    assert passes(forgetting(None), "copies_and_pickles")
    with pytest.raises(checks.ContractBrokenError, match=sentence):
        checks.run(forgetting(copied_by), ["copies_and_pickles"])
