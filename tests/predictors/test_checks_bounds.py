"""Limits of the checks of the contract: what lies just within one passes, and what lies just beyond does not."""

import inspect

import numpy as np
import pytest
from broken_predictors import off_by, passes

from paceline.predictors import EWMA, Forecast, LastValue, Report, checks
from paceline.predictors.adopted import adopted


def test_every_check_that_is_written_is_run():
    """A silent worker that disturbed the others passed once: its check stood in no list."""
    written = {
        name
        for name, check in inspect.getmembers(checks, inspect.isfunction)
        if list(inspect.signature(check).parameters) == ["make"] and not name.startswith("_")
    }
    assert written == set(checks.CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("learns_a_constant", 0.95, 1.05), ("survives_jumps", 0.5, 2.0), ("silence_is_survived", 0.8, 1.25)],
)
def test_a_forecast_may_be_off_by_so_much(name, least, most):
    assert [passes(off_by(factor), name) for factor in (1.01 * least, 0.99 * most)] == [True, True]
    assert [passes(off_by(factor), name) for factor in (0.99 * least, 1.01 * most)] == [False, False]


def saying(speed=(1.0, 1.0, 1.0), spread=(np.inf, np.inf, np.inf), quantile=None):
    class Saying(LastValue):
        def predict(self, covariates=None, *, horizon=1):
            forecast = Forecast(np.array(speed), np.array(spread))
            if quantile is not None:
                object.__setattr__(forecast, "quantile", quantile)
            return forecast

    return Saying


@pytest.mark.parametrize("speed", [0.0, -1.0, np.inf, np.nan])
def test_one_speed_that_cannot_be_breaks_the_contract(speed):
    assert passes(saying(), "defined_before_the_first_report")
    assert not passes(saying(speed=(1.0, speed, 1.0)), "defined_before_the_first_report")


@pytest.mark.parametrize("spread", [np.nan, -0.1])
def test_one_spread_that_cannot_be_breaks_the_contract(spread):
    assert passes(saying(spread=(np.inf, 0.0, 0.1)), "survives_garbage")
    assert not passes(saying(spread=(np.inf, spread, 0.1)), "survives_garbage")


def test_all_spreads_are_infinite_before_the_first_report_and_one_that_is_not_is_noticed():
    assert not passes(saying(spread=(np.inf, 0.1, np.inf)), "defined_before_the_first_report")


@pytest.mark.parametrize(
    ("quantile", "kept"),
    [
        (lambda q: np.full(3, q), True),
        (lambda q: np.zeros(3), True),
        (lambda q: np.array([q, np.nan, q]), False),
        (lambda q: np.array([q, q - 0.1, q]), False),
        (lambda q: np.array([q, 1.0 - q, q]), False),
    ],
)
def test_quantiles_are_known_rising_and_none_is_negative(quantile, kept):
    assert passes(saying(quantile=quantile), "quantiles_are_ordered") == kept


class SavesTheOldName(EWMA):
    """Serves a renamed worker, but resumes it as a new one: what it learnt is stored under the old name."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        renamed_W = np.array(self.workers) == "B"
        self._rows["level"] = np.where(renamed_W, np.nan, self._rows["level"])


def test_a_renamed_worker_must_be_known_after_it_was_resumed():
    assert passes(SavesTheOldName, "state_resumes_exactly")
    assert not passes(SavesTheOldName, "renaming_keeps_what_was_learnt")


class SpreadAlone(EWMA):
    """Base of predictors whose speeds are right and whose spreads are not."""

    asked = 0

    def predict(self, covariates=None, *, horizon=1):
        self.asked += 1
        forecast = super().predict(covariates, horizon=horizon)
        return Forecast(forecast.speed, forecast.spread * (1.0 + 1e-9 * self.asked))


def test_spreads_are_compared_too():
    assert not passes(SpreadAlone, "predict_is_pure")


def slightly(change):
    """Return a predictor whose other forecasts this change of the fleet moves by a ten-millionth."""

    class Slightly(LastValue):
        def join(self, worker):
            super().join(worker)
            self._move("join")

        def leave(self, worker):
            super().leave(worker)
            self._move("leave")

        def rename(self, old, new):
            super().rename(old, new)
            self._move("rename")

        def _move(self, by):
            self._rows["last"] = self._rows["last"] * (1.0 + 1e-7 * (by == change))

        def _next_speed(self, covariates_WD, horizon):
            place_W = np.arange(len(self.workers)) * (change == "order")
            return super()._next_speed(covariates_WD, horizon) * (1.0 + 1e-7 * place_W)

    return Slightly


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("join", "joining_leaves_others_alone"),
        ("leave", "leaving_leaves_others_alone"),
        ("rename", "renaming_keeps_what_was_learnt"),
        ("order", "permuting_workers_permutes_forecasts"),
    ],
)
def test_a_small_change_of_the_others_is_noticed(change, name):
    assert passes(slightly(None), name)
    assert not passes(slightly(change), name)


class Writes(EWMA):
    """Changes what it is given: the times, the covariates, or both."""

    into = ("seconds", "covariates")
    covariate_names = ("load",)

    def observe(self, report):
        super().observe(report)
        for name in self.into:
            if (values := getattr(report, name)) is not None:
                values[:] = 7.0


@pytest.mark.parametrize("into", ["seconds", "covariates"])
def test_writing_to_any_one_input_is_noticed(into):
    assert not passes(type("WritesOne", (Writes,), {"into": (into,)}), "inputs_are_left_alone")


class LearnsThenRefuses(EWMA):
    def observe(self, report):
        if len(report.samples) != len(self.workers):
            self._rows["level"] = self._rows["level"] * 1.01
        super().observe(report)


def test_a_refused_report_must_leave_the_state_alone():
    assert not passes(LearnsThenRefuses, "a_report_of_another_fleet_is_refused")


class WrongFleet(EWMA):
    """Says that it serves other workers than it does, after one kind of change."""

    after = ""

    def join(self, worker):
        super().join(worker)
        self.workers = self.workers[::-1] if self.after == "join" else self.workers

    def leave(self, worker):
        super().leave(worker)
        self.workers = self.workers[::-1] if self.after == "leave" else self.workers

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.workers = self.workers[::-1] if self.after == "load" else self.workers


@pytest.mark.parametrize(
    ("after", "name"),
    [
        ("join", "joining_leaves_others_alone"),
        ("leave", "leaving_leaves_others_alone"),
        ("load", "state_resumes_exactly"),
    ],
)
def test_the_order_of_the_workers_is_part_of_the_contract(after, name):
    assert not passes(type("Wrong", (WrongFleet,), {"after": after}), name)


def test_the_first_sentence_that_breaks_is_the_one_that_is_raised():
    with pytest.raises(checks.ContractBrokenError, match=r"constant speeds are missed by 20.0% after 100 iterations"):
        checks.run(off_by(1.2), ["learns_a_constant"])
    with pytest.raises(checks.ContractBrokenError, match=r"60 iterations after a jump the forecast is 3 times"):
        checks.run(off_by(3.0), ["survives_jumps"])


def test_the_example_that_predictors_are_fitted_to_is_the_same_every_time_and_one_covariate_explains_its_speed():
    trace, again = checks.example_trace(), checks.example_trace()
    np.testing.assert_array_equal(trace.seconds, again.seconds)
    assert (len(trace), trace.workers, trace.covariate_names) == (200, checks.FLEET, ("cpu_busy", "distractor"))
    busy_TW = trace.covariates[..., 0]
    explained_TW = np.log(trace.speed) - np.log([100.0, 200.0, 50.0]) + 0.5 * busy_TW
    assert explained_TW.std() == pytest.approx(0.03, rel=0.1)
    assert np.abs(explained_TW.mean(axis=0)).max() < 0.01
    assert 0.2 < busy_TW.mean() < 0.8
    assert not np.array_equal(checks.example_trace(seed=1).seconds, trace.seconds)


def unusable(when):
    """Return a predictor whose forecast is NaN where this holds of the last report, the covariates and the horizon."""

    class Unusable(LastValue):
        covariate_names = ("load",)
        seconds, samples, covariates, gaps = np.ones(3), np.ones(3), np.zeros((3, 1)), 0
        unknown = 0

        def observe(self, report):
            super().observe(report)
            self.seconds, self.samples, self.covariates = report.seconds, np.asarray(report.samples), report.covariates
            self.gaps += bool(np.isnan(report.speed).any())
            self.unknown += report.covariates is not None and bool(np.isnan(report.covariates).any())

        def predict(self, covariates=None, *, horizon=1):
            forecast = super().predict(covariates, horizon=horizon)
            return Forecast(forecast.speed * np.nan, forecast.spread) if when(self, covariates, horizon) else forecast

    return Unusable


def missing(model):
    return np.isnan(model.seconds).tolist()


UNUSABLE = [
    ("survives_gaps", "one is silent", lambda model, covariates, horizon: missing(model) == [True, False, False]),
    ("survives_gaps", "two are silent", lambda model, covariates, horizon: missing(model) == [False, True, True]),
    ("survives_gaps", "all are silent", lambda model, covariates, horizon: all(missing(model))),
    ("survives_gaps", "after gaps", lambda model, covariates, horizon: model.gaps and not any(missing(model))),
    ("survives_zero_time", "no time", lambda model, covariates, horizon: model.seconds[0] == 0 < model.samples[0]),
    ("survives_zero_time", "no samples", lambda model, covariates, horizon: model.samples[0] == 0),
    ("survives_zero_time", "after it", lambda model, covariates, horizon: model.gaps and model.seconds[0] > 0),
    *(
        ("survives_garbage", f"{garbage} s", lambda model, covariates, horizon, of=garbage: model.seconds[0] == of)
        for garbage in (np.inf, -1.0, 1e300, 1e-300)
    ),
    *(
        ("survives_jumps", f"{seconds} s", lambda model, covariates, horizon, of=seconds: model.seconds[0] == of)
        for seconds in (5e-4, 0.5, 500.0)
    ),
    ("a_silent_worker_gets_a_usable_forecast", "one is silent", lambda model, *asked: missing(model)[2]),
    ("joining_leaves_others_alone", "four workers", lambda model, *asked: len(model.workers) == 4),
    ("silence_is_survived", "one is silent", lambda model, *asked: missing(model)[0]),
    *(
        ("further_horizons_are_usable", f"{far} ahead", lambda model, covariates, horizon, of=far: horizon == of)
        for far in (2, 10)
    ),
    ("missing_covariates_are_survived", "none", lambda model, covariates, horizon: covariates is None),
    (
        "missing_covariates_are_survived",
        "all unknown",
        lambda model, covariates, horizon: covariates is not None and np.isnan(covariates).all(),
    ),
    (
        "missing_covariates_are_survived",
        "one unknown",
        lambda model, covariates, horizon: covariates is not None and np.isnan(covariates).sum() == 1,
    ),
    (
        "missing_covariates_are_survived",
        "reported",
        lambda model, *asked: model.covariates is not None and model.gaps == 0 and np.isnan(model.covariates).any(),
    ),
    (
        "missing_covariates_are_survived",
        "after them",
        lambda model, *asked: model.unknown and (model.covariates is None or not np.isnan(model.covariates).any()),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "when"), [pytest.param(name, when, id=f"{name} {of}") for name, of, when in UNUSABLE])
def test_a_forecast_that_is_of_no_use_in_one_situation_is_noticed(name, when):
    def never(model, covariates, horizon):
        return False

    assert passes(unusable(never), name)
    assert not passes(unusable(when), name)


class ChangedByFarQuestions(LastValue):
    def predict(self, covariates=None, *, horizon=1):
        self._rows["last"] = self._rows["last"] * (1.0 + 0.1 * (horizon > 1))
        return super().predict(covariates, horizon=horizon)


def test_a_question_far_ahead_must_not_change_the_predictor_either():
    assert not passes(ChangedByFarQuestions, "predict_is_pure")


@pytest.mark.parametrize("worker", range(3))
def test_a_constant_speed_must_be_learnt_for_every_worker(worker):
    class OffForOne(LastValue):
        def _next_speed(self, covariates_WD, horizon):
            return super()._next_speed(covariates_WD, horizon) * np.where(np.arange(3) == worker, 1.2, 1.0)

    with pytest.raises(checks.ContractBrokenError, match=r"missed by 20.0% after 100 iterations"):
        checks.run(OffForOne, ["learns_a_constant"])


class LearnsOtherwiseWhenRenamed(EWMA):
    """Forecasts the same after a rename, and learns at another pace from then on."""

    def rename(self, old, new):
        super().rename(old, new)
        self.smoothing_ = 0.21


def test_a_renamed_worker_must_be_forecast_the_same_later_too():
    assert not passes(LearnsOtherwiseWhenRenamed, "renaming_keeps_what_was_learnt")
    with pytest.raises(checks.ContractBrokenError, match="a renamed worker is forecast differently later"):
        checks.run(LearnsOtherwiseWhenRenamed, ["renaming_keeps_what_was_learnt"])


class Foreign:
    """Keeps the public contract and inherits nothing of ours."""

    def __init__(self):
        self.kept = EWMA()

    @property
    def workers(self):
        return self.kept.workers

    covariate_names = ()

    def fit(self, traces):
        return self

    def reset(self, workers):
        self.kept.reset(workers)

    def join(self, worker):
        self.kept.join(worker)

    def leave(self, worker):
        self.kept.leave(worker)

    def rename(self, old, new):
        self.kept.rename(old, new)

    def observe(self, report):
        self.kept.observe(report)

    def predict(self, covariates=None, *, horizon=1):
        return self.kept.predict(covariates, horizon=horizon)

    def state_dict(self):
        return self.kept.state_dict()

    def load_state_dict(self, state):
        self.kept.load_state_dict(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", checks.CHECKS)
def test_a_wrapped_predictor_of_a_user_keeps_the_contract(name):
    checks.run(checks.fitted(adopted(Foreign())), [name])


def test_a_wrapped_predictor_follows_every_change_of_the_fleet():
    wrapped = adopted(Foreign())
    wrapped.reset(["a", "b"])
    wrapped.join("c")
    wrapped.rename("a", "d")
    wrapped.leave("b")
    assert wrapped.workers == wrapped.predictor.workers == ("d", "c")


def keeping(of):
    class Keeping(LastValue):
        """Keeps a report, which its owner may change, and uses it at the next call of this method."""

        kept = None

        def observe(self, report):
            if of == "observe" and self.kept is not None:
                super().observe(Report(self.kept.samples, self.kept.seconds))
            super().observe(report)
            self.kept = report

        def predict(self, covariates=None, *, horizon=1):
            forecast = super().predict(covariates, horizon=horizon)
            if of == "observe" or self.kept is None:
                return forecast
            return Forecast(np.asarray(self.kept.samples) / np.asarray(self.kept.seconds), forecast.spread)

    return Keeping


@pytest.mark.parametrize("of", ["observe", "predict"])
def test_an_input_that_is_kept_is_noticed_at_once_and_later(of):
    assert not passes(keeping(of), "inputs_are_left_alone")
