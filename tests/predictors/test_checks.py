"""Every predictor keeps the contract, and every check notices one that breaks it."""

from typing import ClassVar

import numpy as np
import pytest

from paceline import predictors
from paceline.predictors import EWMA, KINDS, FleetPredictor, Forecast, LastValue, checks


@pytest.fixture(scope="module")
def factories():
    return {}


def test_every_predictor_that_is_offered_is_checked():
    offered = {getattr(predictors, name) for name in predictors.__all__} - {FleetPredictor}
    assert {kind for kind in offered if isinstance(kind, type) and issubclass(kind, FleetPredictor)} == set(KINDS)


SLOW = {"NARX", "GatedNARX", "LSTM", "SimpleRNN", "Auto", "Mixture", "ARIMA"}
"""Kinds whose fits take long: make quick leaves them out."""


@pytest.mark.parametrize("name", checks.CHECKS)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.__name__, marks=[pytest.mark.slow] * (kind.__name__ in SLOW)) for kind in KINDS],
)
def test_contract_is_kept(kind, name, factories):
    if name in kind.skipped_checks:
        assert len(kind.skipped_checks[name]) > 20, "an opt-out gives its reason"
        return
    if kind not in factories:
        factories[kind] = checks.fitted(kind())
    checks.run(factories[kind], [name])


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if hasattr(kind, "fit_streamed")], ids=lambda kind: kind.__name__
)
@pytest.mark.slow
def test_an_unfitted_predictor_keeps_the_contract_too(kind):
    checks.run(kind)


class ImpurePredict(LastValue):
    def predict(self, *, covariates=None, horizon=1):
        self.state["last"] = self.state["last"] * 1.01
        return super().predict(covariates=covariates, horizon=horizon)


class SureFromTheStart(LastValue):
    def predict(self, *, covariates=None, horizon=1):
        return Forecast(super().predict(covariates=covariates, horizon=horizon).speed, np.full(len(self.workers), 0.1))


class TrustsReports(LastValue):
    """Takes every report at its word, as a bare ``samples / seconds`` does."""

    def observe(self, report):
        if len(report.samples) != len(self.workers):
            raise ValueError("another fleet")
        with np.errstate(all="ignore"):
            self.state["last"] = np.asarray(report.samples) / np.asarray(report.seconds)

    def predict(self, *, covariates=None, horizon=1):
        return Forecast(self.state["last"], np.full(len(self.workers), 0.1))


class AlwaysTooHigh(EWMA):
    def forecast_speed(self, covariates_WD, horizon):
        return 1.2 * super().forecast_speed(covariates_WD, horizon)


class KnowsItsPlace(LastValue):
    def forecast_speed(self, covariates_WD, horizon):
        return super().forecast_speed(covariates_WD, horizon) * (1.0 + np.arange(len(self.workers)))


class ForgetfulState(EWMA):
    def state_dict(self):
        return super().state_dict() | {"rows/level": np.full(len(self.workers), np.nan)}


class LivingState(LastValue):
    def update(self, speed_W, covariates_WD):
        self.state["last"][:] = speed_W

    def state_dict(self):
        return {"workers": np.array(self.workers), **{f"rows/{n}": rows for n, rows in self.state.items()}}


class ForgetsWhenPickled(EWMA):
    def __getstate__(self):
        return {**self.__dict__, "state": self._initial_worker_states(len(self.workers))}


class RestartsOnChange(LastValue):
    def join(self, worker):
        self.reset((*self.workers, worker))

    def leave(self, worker):
        self.reset([name for name in self.workers if name != worker])


class ForgetsTheRenamed(LastValue):
    def rename(self, old, new):
        super().rename(old, new)
        self.state["last"] = np.where(np.array(self.workers) == new, np.nan, self.state["last"])


class GivesUpOnTheSilent(LastValue):
    """Forecasts a long-silent worker at the mean of the others, and never follows any worker after that."""

    def initial_state(self, num_workers):
        return super().initial_state(num_workers) | {"silent": np.zeros(num_workers)}

    def update(self, speed_W, covariates_WD):
        super().update(np.where(self.state["silent"] < 100, speed_W, np.nan), covariates_WD)
        self.state["silent"] = self.state["silent"] + np.isnan(speed_W)


class SlowsDownInSilence(LastValue):
    """Takes a worker that does not report for a sign that the others slow down, too."""

    def update(self, speed_W, covariates_WD):
        super().update(speed_W * (1.0 - 1e-7 * np.isnan(speed_W).any()), covariates_WD)


class DriftsInSilence(LastValue):
    """Learns something from every missing report, though it does not show in its forecast yet."""

    def initial_state(self, num_workers):
        return super().initial_state(num_workers) | {"weight": np.ones(num_workers)}

    def update(self, speed_W, covariates_WD):
        super().update(speed_W, covariates_WD)
        self.state["weight"] = np.where(np.isnan(speed_W), 1.01 * self.state["weight"], self.state["weight"])


class RemembersAfterReset(EWMA):
    def reset(self, workers):
        level = self.state.get("level")
        super().reset(workers)
        if level is not None and len(level) == len(workers):
            self.state["level"] = level


class Hoarder(LastValue):
    def observe(self, report):
        super().observe(report)
        self.history = [*getattr(self, "history", []), report.speed]


class SurerFurtherAhead(LastValue):
    def predict(self, *, covariates=None, horizon=1):
        forecast = super().predict(covariates=covariates)
        return Forecast(forecast.speed, forecast.spread / horizon)


class NeedsCovariates(LastValue):
    covariate_names = ("cpu_busy",)

    def forecast_speed(self, covariates_WD, horizon):
        return super().forecast_speed(covariates_WD, horizon) * covariates_WD[:, 0]

    def predict(self, *, covariates=None, horizon=1):
        rows = self._validated_covariates(covariates)
        return Forecast(self.forecast_speed(rows, horizon), np.full(len(self.workers), np.inf))


class KeepsInputs(LastValue):
    def observe(self, report):
        super().observe(report)
        self.report = report

    def forecast_speed(self, covariates_WD, horizon):
        if not hasattr(self, "report"):
            return super().forecast_speed(covariates_WD, horizon)
        return np.asarray(self.report.samples) / np.asarray(self.report.seconds)


class Dice(LastValue):
    def update(self, speed_W, covariates_WD):
        self.state["last"] = speed_W * np.random.default_rng().uniform(0.99, 1.01, len(speed_W))


class AcceptsAnyLength(LastValue):
    def observe(self, report):
        self.update(report.speed[: len(self.workers)], np.empty((len(self.workers), 0)))


class UpsideDown(LastValue):
    def predict(self, *, covariates=None, horizon=1):
        forecast = super().predict(covariates=covariates, horizon=horizon)
        flipped = Forecast(forecast.speed, forecast.spread)
        object.__setattr__(flipped, "quantile", lambda q: forecast.quantile(1.0 - q))
        return flipped


SABOTEURS = {
    "predict_is_pure": ImpurePredict,
    "defined_before_the_first_report": SureFromTheStart,
    "survives_gaps": TrustsReports,
    "survives_garbage": TrustsReports,
    "survives_jumps": lambda: EWMA(smoothing=0.01),
    "a_silent_worker_gets_a_usable_forecast": TrustsReports,
    "learns_a_constant": AlwaysTooHigh,
    "permuting_workers_permutes_forecasts": KnowsItsPlace,
    "state_resumes_exactly": ForgetfulState,
    "state_is_a_snapshot": LivingState,
    "copies_and_pickles": ForgetsWhenPickled,
    "joining_leaves_others_alone": RestartsOnChange,
    "leaving_leaves_others_alone": RestartsOnChange,
    "renaming_keeps_what_was_learned": ForgetsTheRenamed,
    "silence_is_survived": GivesUpOnTheSilent,
    "a_silent_worker_leaves_others_alone": SlowsDownInSilence,
    "a_missing_report_changes_nothing": DriftsInSilence,
    "reset_forgets": RemembersAfterReset,
    "memory_is_bounded": Hoarder,
    "further_horizons_are_usable": SurerFurtherAhead,
    "missing_covariates_are_survived": NeedsCovariates,
    "inputs_are_left_alone": KeepsInputs,
    "forecasts_are_deterministic": Dice,
    "a_report_of_another_fleet_is_refused": AcceptsAnyLength,
    "quantiles_are_ordered": UpsideDown,
}


def test_every_check_has_a_predictor_that_breaks_it():
    assert set(SABOTEURS) == set(checks.CHECKS)


@pytest.mark.parametrize(("name", "kind"), SABOTEURS.items())
def test_check_notices_a_broken_contract(name, kind):
    with pytest.raises(checks.ContractBrokenError):
        checks.run(kind, [name])


def test_a_state_of_another_predictor_is_refused():
    model = EWMA()
    model.reset(["a"])
    kept = r"\['doubted', 'last', 'squared_error'\]"
    with pytest.raises(ValueError, match=rf"the state of LastValue's workers must hold {kept}"):
        LastValue().load_state_dict(model.state_dict())


def test_a_worker_without_a_name_is_refused():
    model = LastValue()
    for begins in (lambda: model.reset(["a", ""]), lambda: model.reset([""])):
        with pytest.raises(ValueError, match="a worker's name must not be empty"):
            begins()
    model.reset(["a", "b"])
    for changes in (lambda: model.join(""), lambda: model.rename("a", "")):
        with pytest.raises(ValueError, match="a worker's name must not be empty"):
            changes()
    with pytest.raises(ValueError, match="worker 'b' is already in the fleet"):
        model.rename("a", "b")
    with pytest.raises(ValueError, match="worker 'z' is not in the fleet"):
        model.rename("z", "y")
    assert model.workers == ("a", "b")


def test_an_opted_out_check_is_not_run():
    class Honest(KnowsItsPlace):
        skipped_checks: ClassVar = {
            "permuting_workers_permutes_forecasts": "made to show how a predictor opts out openly"
        }

    ran = checks.run(Honest, ["permuting_workers_permutes_forecasts", "predict_is_pure"])
    assert ran == ["predict_is_pure"]


class LosesWhatItLearned(EWMA):
    """Learns a factor from traces that its state does not hold: a model file would come back without it."""

    factor_ = 1.0

    def fit(self, traces):
        self.factor_ = 0.9
        return self

    def forecast_speed(self, covariates_WD, horizon):
        return self.factor_ * super().forecast_speed(covariates_WD, horizon)


def test_learned_values_must_be_in_state():
    with pytest.raises(checks.ContractBrokenError, match=r"after load_state_dict\(\), .* must be the same"):
        checks.run(checks.fitted(LosesWhatItLearned()), ["state_resumes_exactly"])
