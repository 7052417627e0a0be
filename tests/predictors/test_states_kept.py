"""The whole state of a predictor, in numbers that are kept: of nobody, of new workers, and of workers with a past.

A model file or a checkpoint of another version holds such a state: whoever changes one changes what can be resumed.
"""

from pathlib import Path

import numpy as np
import pytest
from kept import require_kept

from paceline.predictors import (
    ARIMA,
    EWMA,
    RLS,
    Auto,
    Calibrated,
    ChangePoint,
    Holt,
    HuberEWMA,
    LastValue,
    LeaderSearch,
    LocalLevel,
    Mixture,
    MovingAverage,
    Report,
    RunningMedian,
)
from paceline.predictors.averages.seasonal import Seasonal
from paceline.predictors.averages.smoothed import Averages
from paceline.predictors.linear.pooled import Pooled

KEPT = Path(__file__).with_name("states.json")

KINDS = {
    "last-value": LastValue,
    "ewma": EWMA,
    "averages": lambda: Mixture([Averages([0.5, 0.1], fading=2.0)]),
    "huber-ewma": HuberEWMA,
    "holt": Holt,
    "moving-average": lambda: MovingAverage(3),
    "running-median": lambda: RunningMedian(3),
    "change-point": lambda: ChangePoint(threshold=1.0),
    "local-level": LocalLevel,
    "seasonal": Seasonal,
    "leader-search": lambda: LeaderSearch(window=2),
    "arima": lambda: ARIMA(covariates=["load"]),
    "arima-120": lambda: ARIMA(order=(1, 2, 0), log_speed=False),
    "rls": lambda: RLS(covariates=["load"]),
    "pooled": lambda: Mixture([Pooled("ewma", ["load"])]),
    "mixture": lambda: Mixture(["last-value", "ewma:smoothing=0.5", "holt"]),
    "calibrated": lambda: Calibrated("rls:covariates=['load']"),
    "auto": lambda: Auto(covariates=["load"]),
}


def in_short(state):
    """Return for each array its shape, how many numbers are known, and sums that know their order if there are any."""
    found = {}
    for name, values in state.items():
        if values.dtype.kind == "f":
            flat = values.ravel()
            known = np.where(np.isfinite(flat), flat, 0.0)
            weights = 1.0 + np.sqrt(np.arange(len(flat)))
            sums = [round(float(numbers @ weights), 9) for numbers in (known, np.abs(known))]
            found[name] = [*values.shape, "known", int(np.isfinite(flat).sum()), *(sums if known.any() else [])]
        else:
            found[name] = values.tolist()
    return found


def reports(seed=1):
    """Yield the speeds and the covariate of three workers: gaps, a jump, stalls, and noise that grows."""
    rng = np.random.default_rng(seed)
    load_TW = rng.random((40, 3))
    log_TW = np.log([100.0, 50.0, 200.0]) - 0.5 * load_TW + rng.normal(0.0, 0.05, (40, 3))
    log_TW[20:, 1] += 1.2
    log_TW[30:, 2] += rng.normal(0.0, 1.0, 10)
    log_TW[:2] -= 1.0
    log_TW[rng.random((40, 3)) < 0.06] = np.nan
    log_TW[:4, 2] = np.nan
    for k, (log_W, load_W) in enumerate(zip(log_TW, load_TW, strict=True)):
        yield np.exp(log_W), np.where(k % 9 == 5, np.nan, load_W)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_what_was_kept(name):
    model = KINDS[name]()
    states = {"nobody": model.state_dict() if name != "auto" else {}}
    model.reset(["a", "b", "c"])
    states["new"] = model.state_dict()
    for k, (speed_W, load_W) in enumerate(reports()):
        covariates_WD = np.full((3, len(model.covariate_names)), np.nan)
        if "load" in model.covariate_names:
            covariates_WD[:, model.covariate_names.index("load")] = load_W
        for horizon in (1, 3) if k > 8 else (1,):
            model.predict(covariates_WD, horizon=horizon)
        model.observe(Report(speed_W, np.ones(3), covariates=covariates_WD))
        if k in (0, 5, 39):
            states[f"after {k + 1}"] = model.state_dict()
    for moment, state in states.items():
        told = {of: values for of, values in state.items() if moment == "nobody" or not of.startswith("learnt/")}
        require_kept(KEPT, f"{name}, {moment}", in_short(told), rel=1e-5)
