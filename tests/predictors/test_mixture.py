"""The mixture trusts who deserves it, worker by worker."""

import math

import numpy as np
import pytest

from paceline.datasets import synthetic_fleet
from paceline.predictors import EWMA, RLS, FleetPredictor, LastValue, Mixture, Report, checks

SIMPLE = ("last-value", "ewma:smoothing=0.25", "ewma:smoothing=0.05", "huber-ewma", "rls")


def rms(model, trace, skip):
    """Root mean square log error one step ahead, from iteration ``skip`` on."""
    model.reset(trace.workers)
    errors = []
    for samples, seconds, speed in zip(trace.samples, trace.seconds, trace.speed, strict=True):
        errors.append(np.log(speed / model.predict().speed))
        model.observe(Report(samples, seconds))
    return float(np.sqrt(np.mean(np.square(errors[skip:]))))


@pytest.mark.parametrize("kind", ["mixed", "noexog", "walk"])
@pytest.mark.slow
def test_within_one_percent_of_best_expert(kind):
    trace = synthetic_fleet(kind, workers=10, iterations=800)
    alone = [rms(Mixture([expert]), trace, 300) for expert in SIMPLE]
    assert rms(Mixture(SIMPLE), trace, 300) < 1.01 * min(alone)


@pytest.mark.slow
def test_each_worker_trusts_its_own_best_expert():
    rng = np.random.default_rng(0)
    model = Mixture(["last-value", "ewma:smoothing=0.05"])
    model.reset(["wanders", "rattles"])
    wandering = 0.0
    for _ in range(500):
        wandering += rng.normal(0.0, 0.1)
        model.observe(Report([64, 64], np.exp([wandering, rng.normal(0.0, 0.1)])))
    assert model.weights.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert model.weights[0, 0] > 0.8
    assert model.weights[1, 1] > 0.8


@pytest.mark.slow
def test_absurd_expert_costs_little():
    class Absurd(LastValue):
        def forecast_speed(self, covariates_WD, horizon):
            return 1e3 * super().forecast_speed(covariates_WD, horizon)

    trace = synthetic_fleet("noexog", workers=5, iterations=600)
    good = ["ewma:smoothing=0.25", "ewma:smoothing=0.1"]
    assert rms(Mixture([*good, Absurd()]), trace, 100) < 1.05 * rms(Mixture(good), trace, 100)


@pytest.mark.slow
def test_covariates_reach_the_experts_that_read_them():
    trace = synthetic_fleet("mixed", workers=5, iterations=600)
    model = Mixture(["ewma", RLS(covariates=("memory_pressure",)), RLS(covariates=("cpu_share",))])
    assert model.covariate_names == ("memory_pressure", "cpu_share")
    forecasts = []
    for order in (("cpu_share", "memory_pressure"), ("memory_pressure", "cpu_share")):
        mixed = Mixture([RLS(covariates=("memory_pressure",)), RLS(covariates=order)])
        assert mixed.covariate_names == ("memory_pressure", "cpu_share")
        mixed.reset(trace.workers)
        panel = trace.covariates_named(mixed.covariate_names)
        for k in range(80):
            mixed.observe(Report(trace.samples[k], trace.seconds[k], covariates=panel[k]))
        forecasts.append(mixed.predict(covariates=panel[80]).speed)
    np.testing.assert_allclose(*forecasts, rtol=1e-6)


def test_no_expert_or_a_bare_name_is_refused():
    for experts in ([], "ewma"):
        with pytest.raises(ValueError, match="experts must be a list"):
            Mixture(experts)


class Outsider:
    """Keeps the contract through an EWMA that it holds, and is none of the library's classes."""

    covariate_names = ()

    def __init__(self):
        self.inside = EWMA(smoothing=0.3)

    @property
    def workers(self):
        return self.inside.workers

    def __getattr__(self, name):
        if name.startswith("__") or name == "inside":
            raise AttributeError(name)
        return getattr(self.inside, name)


@pytest.mark.slow
def test_custom_predictor_is_as_good_an_expert():
    own, ours = (Mixture(["last-value", expert]) for expert in (Outsider(), EWMA(smoothing=0.3)))
    trace = checks.example_trace()
    for model in (own, ours):
        model.reset(trace.workers)
    for samples_W, seconds_W in zip(trace.samples, trace.seconds, strict=True):
        assert own.predict().speed == pytest.approx(ours.predict().speed)
        own.observe(Report(samples_W, seconds_W))
        ours.observe(Report(samples_W, seconds_W))
    resumed = Mixture(["last-value", Outsider()])
    resumed.load_state_dict(own.state_dict())
    assert resumed.predict().speed == pytest.approx(own.predict().speed)
    assert own.weights == pytest.approx(ours.weights)


def test_nan_expert_has_no_weight():
    class Ignorant(LastValue):
        def forecast_speed(self, covariates_WD, horizon):
            return np.where([True, False], np.nan, super().forecast_speed(covariates_WD, horizon))

    model = Mixture([LastValue(), Ignorant()])
    model.reset(["a", "b"])
    for seconds in (1.0, 2.0, 3.0, 4.0):
        model.observe(Report([64, 128], [seconds, seconds]))
        assert model.predict().speed == pytest.approx([64 / seconds, 128 / seconds])


class Always(FleetPredictor):
    """Expects one speed of every worker, whatever it sees."""

    def __init__(self, speed):
        super().__init__()
        self.speed = speed

    def initial_state(self, num_workers):
        return {"speed": np.full(num_workers, self.speed)}

    def update(self, speed_W, covariates_WD):
        pass

    def forecast_speed(self, covariates_WD, horizon):
        return self.state["speed"]


@pytest.mark.slow
def test_luck_earns_no_trust():
    """A fair coin decides which of them is right: the more was at stake, the slower trust may move."""
    model, coin = Mixture([Always(50.0), Always(200.0)]), np.random.default_rng(0)
    model.reset([str(w) for w in range(300)])
    for _ in range(300):
        model.predict()
        model.observe(Report(np.where(coin.random(300) < 0.5, 50.0, 200.0), np.ones(300)))
    assert model.weights.max(axis=1).mean() < 0.6


def aggregated(log_speeds, experts):
    """Bernstein online aggregation of one worker's constant experts, number by number: their weights at the end."""
    count, scale = len(experts), None
    regret, square, weights = [0.0] * count, [0.0] * count, [1 / count] * count
    for log_speed in log_speeds:
        mean = sum(weight * expert for weight, expert in zip(weights, experts, strict=True))
        error = log_speed - mean
        scale = abs(error) if scale is None else 0.95 * scale + 0.05 * min(abs(error), 5 * scale)
        parts = []
        for e, expert in enumerate(experts):
            gain = max(min(error / scale, 3.0), -3.0) * max(min((expert - mean) / scale, 3.0), -3.0)
            regret[e], square[e] = 0.998 * regret[e] + gain, 0.998 * square[e] + gain**2
            rate = min(1 / 6, math.sqrt(math.log(count + 1) / square[e]))
            parts.append(rate * math.exp(rate * regret[e] - rate**2 * square[e]))
        weights = [0.99 * part / sum(parts) + 0.01 / count for part in parts]
    return weights


@pytest.mark.parametrize("iterations", [1, 2, 5, 20, 100])
def test_weights_are_bernstein_aggregation(iterations):
    """Of few iterations the rates are all the highest; of many each follows its expert's own squares."""
    speeds = np.random.default_rng(0).lognormal(4.7, 0.3, iterations)
    speeds[iterations // 2 :: 10] *= 20  # beyond the most that one iteration may count for
    model = Mixture([Always(80.0), Always(100.0), Always(200.0)])
    model.reset(["a"])
    for speed in speeds:
        model.predict()
        model.observe(Report([speed], [1.0]))
    assert model.weights[0] == pytest.approx(aggregated(np.log(speeds), np.log([80.0, 100.0, 200.0])))
