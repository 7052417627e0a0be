"""A fleet with gaps, jumps, newcomers and workers that leave is kept as a slow reference keeps it, worker by worker."""

import itertools
import math

import numpy as np
import pytest

from paceline.predictors import BatchTime, Report
from paceline.predictors.fleet import DOUBTED, ERROR_SMOOTHING, FleetPredictor, with_prior
from paceline.predictors.report import FASTEST, LARGEST, SLOWEST

AFRESH = 7.0
"""After this speed a worker starts afresh."""


class Last(FleetPredictor):
    """The last speed times the horizon, and whether warnings were silenced when it was asked or told."""

    def __init__(self, plain=False):
        super().__init__()
        self.plain, self._plain, self.learnt, self.silenced = plain, plain, None, None

    def _fresh(self, count):
        return {"last": np.full(count, np.nan)}

    def _learn(self, speed_W, covariates_WD):
        self.learnt, self.silenced = speed_W.copy(), np.geterr()["divide"] == "ignore"
        self._rows["last"] = np.where(np.isnan(speed_W), self._rows["last"], speed_W)
        if (speed_W == AFRESH).any():
            self._forget(speed_W == AFRESH)

    def _next_speed(self, covariates_WD, horizon):
        self.silenced = np.geterr()["divide"] == "ignore"
        return self._rows["last"] * horizon


class Slow:
    """One worker, in plain Python."""

    def __init__(self):
        self.last, self.error, self.doubted = None, None, False

    def observe(self, speed):
        """Return the speed that is learnt, NaN if none is."""
        if math.isnan(speed):
            return speed
        far = self.last is not None and np.log(speed / self.last) > DOUBTED
        self.doubted, accepted = far and not self.doubted, not far or self.doubted
        if not accepted:
            return math.nan
        if self.last is not None:
            newest = math.log(speed / self.last) ** 2
            self.error = newest if self.error is None else self.error + ERROR_SMOOTHING * (newest - self.error)
        self.last = speed
        if speed == AFRESH:
            self.__init__()
        return speed


def reported(rng, slow):
    """Return a speed: usual, none, a stall, or far above the one before; sometimes the one after which all ends."""
    last = slow.last if slow.last and 0.01 < slow.last < 1e6 else 100.0
    return last * rng.choice([1.0, 1.0, 1.0, 0.9, 1.2, 100.0, 150.0, 1e-3]) if rng.random() < 0.8 else math.nan


def require_same(model, slow):
    """Compare the forecasts of two horizons."""
    known = [one.last for one in slow.values() if one.last is not None]
    middle = float(np.median(known)) if known else 1.0
    for horizon, forecast in ((1, model.predict()), (1, model.predict(horizon=1)), (4, model.predict(horizon=4))):
        speed = [middle if one.last is None else one.last for one in slow.values()]
        assert forecast.speed.tolist() == [one * (horizon if known else 1) for one in speed]
        spread = [math.inf if one.error is None else math.sqrt(one.error * horizon) for one in slow.values()]
        np.testing.assert_allclose(forecast.spread, spread, rtol=1e-9)


def change(rng, model, slow, number):
    """Let a worker join, leave, or start afresh under another name, or all start again."""
    kind = rng.choice(["join", "leave", "rename", "reset"], p=[0.4, 0.3, 0.2, 0.1])
    names = list(slow)
    if kind == "join" or (kind == "leave" and len(names) == 1):
        model.join(f"w{number}")
        slow[f"w{number}"] = Slow()
    elif kind == "leave":
        gone = str(rng.choice(names))
        model.leave(gone)
        del slow[gone]
    elif kind == "rename":
        old = str(rng.choice(names))
        model.rename(old, f"w{number}")
        kept = [(f"w{number}" if name == old else name, one) for name, one in slow.items()]
        slow.clear()
        slow.update(kept)
    else:
        model.reset(names)
        slow.update({name: Slow() for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_fleet_is_what_its_workers_are_one_by_one(plain, seed):
    rng, model = np.random.default_rng(seed), Last(plain)
    slow = {name: Slow() for name in ("a", "b", "c")[: 1 + seed % 3]}
    model.reset(list(slow))
    require_same(model, slow)
    for number in range(60):
        quiet = number % 20 < 10
        if quiet:
            speed_W = [(one.last or 100.0) * rng.uniform(0.8, 1.3) for one in slow.values()]
        else:
            speed_W = [AFRESH if rng.random() < 0.05 else reported(rng, one) for one in slow.values()]
        model.observe(Report(samples=speed_W, seconds=np.ones(len(slow))))
        learnt = [one.observe(speed) for one, speed in zip(slow.values(), speed_W, strict=True)]
        np.testing.assert_array_equal(model.learnt, learnt)
        require_same(model, slow)
        if not quiet and rng.random() < 0.3:
            change(rng, model, slow, number)
            assert list(model.workers) == list(slow)
            require_same(model, slow)
        if rng.random() < 0.05:
            resumed = Last(plain)
            resumed.load_state_dict(model.state_dict())
            model = resumed
            require_same(model, slow)


@pytest.mark.parametrize("plain", [False, True])
def test_warnings_are_silenced_unless_usual_reports_of_a_known_fleet_cannot_raise_any(plain):
    model, usual = Last(plain), Report(samples=[64.0, 64.0], seconds=[0.5, 0.5])
    model.reset(["a", "b"])

    def silenced(*reports):
        for report in reports:
            model.observe(report)
        told = model.silenced
        model.predict()
        return told, model.silenced

    gap = Report(samples=[64.0, 64.0], seconds=[0.5, np.nan])
    full = Report(samples=[64.0, 64.0], seconds=[0.5, 0.5], out_of_memory=[False, True])
    assert silenced(usual) == (True, True)
    assert silenced(usual) == (True, not plain), "the first errors are known after it"
    assert silenced(usual) == (not plain, not plain)
    for unusual in (gap, full):
        assert silenced(unusual) == (True, not plain)
        np.testing.assert_array_equal(model.learnt, [128.0, np.nan])
    assert silenced(usual, usual) == (not plain, not plain)
    model.join("c")
    model.predict()
    assert model.silenced


def test_samples_may_be_any_numbers():
    found = []
    for kind in (int, float, np.float32, object):
        model = BatchTime()
        model.reset(["a", "b"])
        for size in (32, 64, 48, 80):
            model.observe(Report(samples=np.array([size, 2 * size], dtype=kind), seconds=[0.5 + size / 100, 0.25]))
        found.append(model.predict().speed.tolist())
    assert found == [found[0]] * 4


def test_none_is_no_report_also_beside_one_that_is_doubted():
    model = Last()
    model.reset(["a", "b"])
    for samples, learnt in (([64, 64], [64, 64]), ([None, 6500], [np.nan, np.nan]), ([64, None], [64, np.nan])):
        model.observe(Report(samples=samples, seconds=[1, 1]))
        np.testing.assert_array_equal(model.learnt, learnt)
    model.observe(Report(samples=[32, 6500], seconds=[1, 1]))
    np.testing.assert_array_equal(model.learnt, [32, 6500])


def test_covariates_that_cannot_be_are_unknown_and_the_same_question_is_the_same_object():
    class Two(Last):
        covariate_names = ("x", "y")

    model = Two()
    model.reset(["a", "b"])
    given = [[1.0, -LARGEST], [np.nextafter(-LARGEST, 0), None]]
    rows = model._covariate_rows(given)
    np.testing.assert_array_equal(rows, [[1.0, np.nan], [np.nextafter(-LARGEST, 0), np.nan]])
    assert rows.flags.f_contiguous
    assert model._covariate_rows(np.array(given, dtype=np.float64)) is rows
    assert np.isnan(model._covariate_rows([[LARGEST, np.inf], [-np.inf, np.nan]])).all()
    assert np.isnan(model._covariate_rows(None)).all()
    assert model._covariate_rows(None).shape == (2, 2)
    with pytest.raises(ValueError, match=r"\(2, 2\), in the order \['x', 'y'\], got \(2,\)"):
        model._covariate_rows([1.0, 2.0])
    model.join("c")
    assert model._covariate_rows(None).shape == (3, 2)


def test_a_speed_that_is_not_known_is_the_median_of_those_that_are_and_none_is_impossible():
    values = [np.nan, np.inf, 0.0, SLOWEST / 2, SLOWEST, 1.0, 70.0, FASTEST, 2 * FASTEST]
    for speeds in itertools.product(values, repeat=3):
        known = [speed for speed in speeds if math.isfinite(speed)]
        prior = float(np.median(known)) if known else 1.0
        wanted = [min(max(speed if math.isfinite(speed) else prior, SLOWEST), FASTEST) for speed in speeds]
        given = np.array(speeds)
        found = with_prior(given)
        assert found.tolist() == wanted
        assert not np.shares_memory(found, given)
