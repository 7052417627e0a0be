"""The contract of every predictor, as small named checks that anyone can run on their own predictor.

    from paceline.predictors import checks

    checks.run(checks.fitted(MyPredictor()))

A predictor for which a check makes no sense declares so: ``skipped_checks = {"learns_a_constant": "the reason"}``.
Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from paceline._arrays import Array
from paceline.predictors.protocol import Forecast, Predictor, Report

Factory = Callable[[], Predictor]

WORKER_NAMES = ("a", "b", "c")
SAMPLES = 64.0
SILENT_ITERATIONS = 300


class ContractBrokenError(AssertionError):
    """A predictor breaks the contract of all predictors."""


class FittedFactory:
    """Makes copies of a fitted predictor; ``make_unfitted`` makes one that a new process loads a state into."""

    def __init__(self, predictor: Predictor) -> None:
        self.make_unfitted = partial(copy.deepcopy, copy.deepcopy(predictor))
        self._fitted = copy.deepcopy(predictor).fit([example_trace()])

    def __call__(self) -> Predictor:
        return copy.deepcopy(self._fitted)


def fitted(predictor: Predictor) -> Factory:
    """Return a factory of copies of the predictor, fitted to :func:`example_trace`."""
    return FittedFactory(predictor)


def run(make_predictor: Factory, names: Sequence[str] | None = None) -> list[str]:
    """Run all checks, or those named, and return the names of those that ran; raise at the first that fails.

    Examples
    --------
    >>> from paceline.predictors import EWMA
    >>> len(run(fitted(EWMA()))) == len(CHECKS)
    True
    """
    made = make_predictor()
    opted_out = getattr(made, "skipped_checks", {})
    chosen = [name for name in names or CHECKS if name not in opted_out]
    for name in chosen:
        CHECKS[name](make_predictor)
    return chosen


def example_trace(iterations: int = 200, seed: int = 0):  # type: ignore[no-untyped-def]  # datasets is imported late
    """Return a small synthetic trace: three workers and two covariates; one covariate explains the changes of speed."""
    from paceline.datasets import Trace

    rng = np.random.default_rng(seed)
    busy_TW = (np.cumsum(rng.random((iterations, len(WORKER_NAMES))) < 0.05, axis=0) % 2).astype(float)
    noise_TW = rng.normal(0.0, 0.03, busy_TW.shape)
    speed_TW = np.array([100.0, 200.0, 50.0]) * np.exp(-0.5 * busy_TW + noise_TW)
    return Trace(
        samples=np.full(busy_TW.shape, SAMPLES),
        seconds=SAMPLES / speed_TW,
        covariates=np.stack([busy_TW, rng.random(busy_TW.shape)], axis=-1),
        covariate_names=["cpu_busy", "distractor"],
        workers=WORKER_NAMES,
        meta={"job": "example", "source": "paceline.predictors.checks"},
    )


# -- the contract ------------------------------------------------------------------------------------------------


def predict_is_pure(make_predictor: Factory) -> None:
    """Two calls in a row give the same answer, and a call changes nothing."""
    polled, silent = _warm_up(make_predictor), _warm_up(make_predictor)
    _require_same(polled.predict(), polled.predict(), "predict() must return the same forecast twice in a row")
    polled.predict(horizon=3)
    _require_same_future(polled, silent, "predict() must not change the state, but it changed later forecasts")


def defined_before_the_first_report(make_predictor: Factory) -> None:
    """There is a forecast before the first report, and its spread is infinite."""
    forecast = _start(make_predictor).predict()
    _require_usable(forecast)
    _require(np.isinf(forecast.spread).all(), "spreads must be infinite before the first report")


def survives_gaps(make_predictor: Factory) -> None:
    """Missing reports (NaN) of one worker, or of all, leave every forecast usable."""
    predictor = _warm_up(make_predictor)
    for gap in ([np.nan, 0.5, 0.5], [np.nan] * 3, [0.5, np.nan, np.nan]):
        for _ in range(5):
            predictor.observe(_make_report(gap))
            _require_usable(predictor.predict())
    _require_usable(_continue_and_forecast(predictor))


def survives_garbage(make_predictor: Factory) -> None:
    """Impossible reports, as of no time, no samples or infinite time, count as none: every forecast stays usable."""
    predictor = _warm_up(make_predictor)
    for garbage in (0.0, np.inf, -1.0, 1e300, 1e-300):
        predictor.observe(_make_report([garbage, 0.5, 0.5]))
        _require_usable(predictor.predict())
    predictor.observe(Report(samples=np.zeros(3), seconds=np.zeros(3)))
    _require_usable(predictor.predict())
    _require_usable(_continue_and_forecast(predictor))


def survives_jumps(make_predictor: Factory) -> None:
    """A speed that jumps a thousandfold, up and down, leaves every forecast usable and is followed."""
    predictor = _warm_up(make_predictor)
    for seconds in (5e-4, 0.5, 500.0):
        for _ in range(60):
            predictor.observe(_make_report([seconds, 0.5, 0.5]))
            _require_usable(predictor.predict())
        ratio = predictor.predict().speed[0] * seconds / SAMPLES
        _require(0.5 < ratio < 2.0, f"60 iterations after a jump, the forecast is {ratio:.3g} times the new speed")


def a_silent_worker_gets_a_usable_forecast(make_predictor: Factory) -> None:
    """A worker that never reports is forecast from the others and does not disturb them."""
    predictor = _start(make_predictor)
    for report in _random_reports(30):
        predictor.observe(_hide_worker(report, 2))
        _require_usable(predictor.predict())
    _require_unknown(predictor, 2, "a worker that never reported must be unknown")


def learns_a_constant(make_predictor: Factory) -> None:
    """A worker of constant speed is forecast at that speed."""
    predictor = _observe_all(_start(make_predictor), [_make_report([0.5, 0.25, 2.0])] * 100)
    error = np.abs(predictor.predict().speed / np.array([128.0, 256.0, 32.0]) - 1.0).max()
    _require(error < 0.05, f"after 100 iterations of constant speeds, a forecast is off by {error:.1%}, not below 5%")


def permuting_workers_permutes_forecasts(make_predictor: Factory) -> None:
    """The order of the workers does not matter to any of them."""
    order = np.array([2, 0, 1])
    straight, permuted = _start(make_predictor), make_predictor()
    permuted.reset([WORKER_NAMES[i] for i in order])
    for report in _random_reports(40):
        straight.observe(report)
        permuted.observe(_make_report(np.asarray(report.seconds)[order]))
    same = np.allclose(straight.predict().speed[order], permuted.predict().speed, rtol=1e-9)
    _require(same, "forecasts must not depend on the order of the workers")


def state_resumes_exactly(make_predictor: Factory) -> None:
    """Loading a state into a new predictor, never fitted, continues bit for bit."""
    original = _warm_up(make_predictor)
    resumed = make_predictor.make_unfitted() if isinstance(make_predictor, FittedFactory) else make_predictor()
    resumed.load_state_dict(original.state_dict())
    _require_workers(resumed, original.workers, "load_state_dict()")
    _require_same_future(original, resumed, "after load_state_dict(), later forecasts must be the same")


def state_is_a_snapshot(make_predictor: Factory) -> None:
    """A state saved earlier does not change while the predictor goes on learning."""
    predictor = _warm_up(make_predictor)
    state = predictor.state_dict()
    before = {name: np.array(value) for name, value in state.items()}
    _continue_and_forecast(predictor)
    same = all(np.array_equal(before[n], state[n], equal_nan=before[n].dtype.kind == "f") for n in before)
    _require(same, "state_dict() must return copies, but its arrays changed as the predictor went on learning")


def copies_and_pickles(make_predictor: Factory) -> None:
    """A deep copy and an unpickled one continue as the original, independently of it."""
    original = _warm_up(make_predictor)
    twins = copy.deepcopy(original), pickle.loads(pickle.dumps(original))
    expected = _continue_and_forecast(original)
    for twin, kind in zip(twins, ("a deep copy", "an unpickled predictor"), strict=True):
        _require_same(expected, _continue_and_forecast(twin), f"{kind} must forecast like the original")


def joining_leaves_others_alone(make_predictor: Factory) -> None:
    """A worker that joins stands last; the forecasts of the others stay."""
    predictor = _warm_up(make_predictor)
    before = predictor.predict().speed
    predictor.join("d")
    _require_workers(predictor, (*WORKER_NAMES, "d"), "join('d')")
    after = predictor.predict()
    _require_usable(after)
    _require(len(after.speed) == 4, f"predict() must cover a worker that joined, but returned {after.speed}")
    _require(np.allclose(after.speed[:3], before, rtol=1e-9), "join() must not change the forecasts of other workers")


def leaving_leaves_others_alone(make_predictor: Factory) -> None:
    """A worker that leaves is gone; the forecasts of the others stay, and it may come back as a new one."""
    predictor = _warm_up(make_predictor)
    before = predictor.predict().speed
    predictor.leave("b")
    _require_workers(predictor, ("a", "c"), "leave('b')")
    same = np.allclose(predictor.predict().speed, before[[0, 2]], rtol=1e-9)
    _require(same, "leave() must not change the forecasts of other workers")
    predictor.join("b")
    _require_unknown(predictor, 2, "a worker that leaves and joins again must start as new")


def renaming_keeps_what_was_learned(make_predictor: Factory) -> None:
    """A worker under another name keeps its place and its state, also when the state is saved and resumed."""
    renamed, resumed, untouched = _warm_up(make_predictor), make_predictor(), _warm_up(make_predictor)
    renamed.rename("b", "B")
    _require_workers(renamed, ("a", "B", "c"), "rename('b', 'B')")
    _require_same(renamed.predict(), untouched.predict(), "rename() must not change the next forecast")
    resumed.load_state_dict(renamed.state_dict())
    expected = _continue_and_forecast(untouched)
    _require_same(_continue_and_forecast(renamed), expected, "rename() must not change later forecasts")
    _require_same(
        _continue_and_forecast(resumed), expected, "after rename(), a saved state must give the same forecasts"
    )
    renamed.join("b")
    _require_unknown(renamed, 3, "a worker that joins under the old name of a renamed one must start as new")


def silence_is_survived(make_predictor: Factory) -> None:
    """A worker silent for hundreds of iterations is forecast well once it is back."""
    silent = _warm_up(make_predictor)
    before = silent.predict().spread[0]
    _observe_all(silent, (_hide_worker(report, 0) for report in _random_reports(SILENT_ITERATIONS, seed=3)))
    waited = silent.predict()
    _require_usable(waited)
    _require(waited.spread[0] >= before, "the spread of a worker that stops reporting must not shrink")
    _observe_all(silent, [_make_report([0.125, 0.25, 1.0])] * 30)
    ratio = silent.predict().speed[0] * 0.125 / SAMPLES
    _require(0.8 < ratio < 1.25, f"30 iterations after a silence, the forecast is {ratio:.3g} times the speed")


def a_silent_worker_leaves_others_alone(make_predictor: Factory) -> None:
    """A worker that stops reporting does not change the forecasts of the others."""
    silent, present = _warm_up(make_predictor), _warm_up(make_predictor)
    for report in _random_reports(SILENT_ITERATIONS, seed=3):
        silent.observe(_hide_worker(report, 0))
        present.observe(report)
    same = np.allclose(silent.predict().speed[1:], present.predict().speed[1:], rtol=1e-9)
    _require(same, "a worker that stops reporting must not change the forecasts of the others")


def a_missing_report_changes_nothing(make_predictor: Factory) -> None:
    """A missing report leaves that worker's state as it is, to the last bit, however often."""
    predictor = _warm_up(make_predictor)
    before = predictor.state_dict()
    for report in _random_reports(SILENT_ITERATIONS, seed=4):
        predictor.observe(replace(_hide_worker(report, 0), covariates=None))
    for name, rows in predictor.state_dict().items():
        if name.startswith("rows/"):
            unchanged = np.array_equal(rows[0], before[name][0], equal_nan=True)
            _require(unchanged, f"a missing report must not change its worker's state, but changed {name!r}")


def reset_forgets(make_predictor: Factory) -> None:
    """After reset the predictor behaves like one that never observed anything."""
    used, new = _warm_up(make_predictor), _start(make_predictor)
    used.reset(WORKER_NAMES)
    _require_same(used.predict(), new.predict(), "after reset(), the first forecast must be that of a new predictor")
    _require_same_future(used, new, "after reset(), later forecasts must be those of a new predictor")


def memory_is_bounded(make_predictor: Factory) -> None:
    """A thousand iterations take no more memory than a hundred."""
    predictor = _observe_all(_start(make_predictor), _random_reports(100))
    small = len(pickle.dumps(predictor))
    large = len(pickle.dumps(_observe_all(predictor, _random_reports(1000))))
    _require(large <= 1.02 * small + 200, f"memory must not grow, but a pickle grew from {small} to {large} bytes")


def further_horizons_are_usable(make_predictor: Factory) -> None:
    """There are forecasts two and ten iterations ahead, no more certain than one ahead."""
    predictor = _warm_up(make_predictor)
    near, far = predictor.predict(horizon=1), predictor.predict(horizon=10)
    _require_usable(predictor.predict(horizon=2))
    _require_usable(far)
    _require((far.spread >= near.spread).all(), "spreads ten iterations ahead must not be below those one ahead")


def missing_covariates_are_survived(make_predictor: Factory) -> None:
    """Covariates may be absent, or NaN for one worker or all: forecasts stay usable."""
    predictor = _warm_up(make_predictor)
    width = len(predictor.covariate_names)
    for covariates in (None, np.full((3, width), np.nan), np.where(np.eye(3, width) > 0, np.nan, 1e6)):
        _require_usable(predictor.predict(covariates=covariates))
        predictor.observe(_make_report([0.5, 0.25, 1.0], covariates))
    _require_usable(_continue_and_forecast(predictor))


def inputs_are_left_alone(make_predictor: Factory) -> None:
    """Neither observe nor predict writes to its input arrays or keeps a reference to them."""
    watched, clean = _warm_up(make_predictor), _warm_up(make_predictor)
    seconds = np.array([0.5, 0.25, 1.0])
    covariates = np.ones((3, len(watched.covariate_names)))
    watched.observe(_make_report(seconds, covariates))
    watched.predict(covariates=covariates)
    unchanged = (seconds == [0.5, 0.25, 1.0]).all() and (covariates == 1.0).all()
    _require(unchanged, "observe() and predict() must not write to their input arrays")
    clean.observe(_make_report(seconds.copy(), covariates.copy()))
    seconds[:], covariates[:] = 99.0, 99.0
    problem = "observe() and predict() must copy their inputs, but a later change of an input changed a forecast"
    _require_same(watched.predict(), clean.predict(), problem)
    _require_same_future(watched, clean, problem)


def forecasts_are_deterministic(make_predictor: Factory) -> None:
    """The same reports give bit-identical forecasts."""
    first, second = _warm_up(make_predictor), _warm_up(make_predictor)
    _require_same(first.predict(), second.predict(), "two copies with the same reports must return the same forecast")


def a_report_of_another_fleet_is_refused(make_predictor: Factory) -> None:
    """A report whose length is not that of the fleet raises a ValueError and leaves the state unchanged."""
    predictor, untouched = _warm_up(make_predictor), _warm_up(make_predictor)
    try:
        predictor.observe(Report(samples=[SAMPLES] * 5, seconds=[0.5] * 5))
    except ValueError:
        _require_same_future(predictor, untouched, "observe() must not change the state when it raises ValueError")
    else:
        raise ContractBrokenError("observe() must raise ValueError for a report of another fleet size")


def quantiles_are_ordered(make_predictor: Factory) -> None:
    """A higher quantile is never a lower speed, and none is NaN or negative."""
    forecast = _warm_up(make_predictor).predict()
    quantiles = np.stack([forecast.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)])
    _require((quantiles >= 0).all(), "quantile(q) must not be NaN or negative")
    _require((np.diff(quantiles, axis=0) >= 0).all(), "quantile(q) must not decrease when q grows")


CHECKS: Mapping[str, Callable[[Factory], None]] = {
    check.__name__: check
    for check in (
        predict_is_pure,
        defined_before_the_first_report,
        survives_gaps,
        survives_garbage,
        survives_jumps,
        a_silent_worker_gets_a_usable_forecast,
        learns_a_constant,
        permuting_workers_permutes_forecasts,
        state_resumes_exactly,
        state_is_a_snapshot,
        copies_and_pickles,
        joining_leaves_others_alone,
        leaving_leaves_others_alone,
        renaming_keeps_what_was_learned,
        silence_is_survived,
        a_silent_worker_leaves_others_alone,
        a_missing_report_changes_nothing,
        reset_forgets,
        memory_is_bounded,
        further_horizons_are_usable,
        missing_covariates_are_survived,
        inputs_are_left_alone,
        forecasts_are_deterministic,
        a_report_of_another_fleet_is_refused,
        quantiles_are_ordered,
    )
}
"""Every check by its name."""


# -- what the checks are made of ---------------------------------------------------------------------------------


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise ContractBrokenError(message)


def _require_same(forecast: Forecast, other: Forecast, message: str) -> None:
    _require(np.array_equal(forecast.speed, other.speed) and np.array_equal(forecast.spread, other.spread), message)


def _require_same_future(predictor: Predictor, other: Predictor, message: str) -> None:
    _require_same(_continue_and_forecast(predictor), _continue_and_forecast(other), message)


def _require_usable(forecast: Forecast) -> None:
    speed, spread = forecast.speed, forecast.spread
    _require(((speed > 0) & (speed < np.inf)).all(), f"forecast speeds must be positive and finite, got {speed}")
    _require((spread >= 0).all(), f"forecast spreads must not be NaN or negative, got {spread}")


def _require_unknown(predictor: Predictor, worker: int, message: str) -> None:
    spread = predictor.predict().spread[worker]
    _require(np.isinf(spread), f"{message}, with an infinite spread, got {spread:.3g}")


def _require_workers(predictor: Predictor, expected: tuple[str, ...], call: str) -> None:
    _require(predictor.workers == expected, f"after {call}, workers must be {expected}, got {predictor.workers}")


def _make_report(seconds: Sequence[float] | Array, covariates: Array | None = None) -> Report:
    return Report(samples=np.full(len(seconds), SAMPLES), seconds=np.asarray(seconds), covariates=covariates)


def _random_reports(num_reports: int, seed: int = 1) -> Iterator[Report]:
    rng = np.random.default_rng(seed)
    for _ in range(num_reports):
        yield _make_report(np.array([0.5, 0.25, 1.0]) * np.exp(rng.normal(0.0, 0.1, 3)))


def _hide_worker(report: Report, worker: int) -> Report:
    seconds = np.array(report.seconds)
    seconds[worker] = np.nan
    return _make_report(seconds)


def _start(make_predictor: Factory) -> Predictor:
    predictor = make_predictor()
    predictor.reset(WORKER_NAMES)
    return predictor


def _observe_all(predictor: Predictor, reports: Iterable[Report]) -> Predictor:
    for report in reports:
        predictor.observe(report)
    return predictor


def _warm_up(make_predictor: Factory) -> Predictor:
    return _observe_all(_start(make_predictor), _random_reports(30))


def _continue_and_forecast(predictor: Predictor) -> Forecast:
    return _observe_all(predictor, _random_reports(10, seed=2)).predict()
