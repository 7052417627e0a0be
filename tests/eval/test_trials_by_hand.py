"""Trials of a search: what each is given, how it is scored, and when the search stops."""

import logging
import math
import warnings
from types import SimpleNamespace

import numpy as np
import optuna
import pytest

from paceline.datasets import Trace
from paceline.eval import tune as searching
from paceline.predictors import EWMA, KINDS, NARX, Training, named
from paceline.training.sources import Source

TRAINING = Training(epochs=3)


def trace_of(*speeds, **more):
    speed_TW = np.array(speeds, dtype=float).T
    return Trace(np.ones_like(speed_TW), 1 / speed_TW, **more)


WAVE = trace_of(*[10 + 3 * np.sin(np.arange(30) * k) for k in (1, 2)], workers=["a", "b"])


@pytest.fixture
def scored(monkeypatch):
    """The trials that are scored: by how far the argument lies from a half, which nothing is fitted for."""
    calls, groups, spread = [], [], searching.spread

    def score(*call):
        calls.append(call)
        return abs(call[1]["smoothing"] - 0.5)

    def spread_out(function, given):
        groups.append(len(given))
        return spread(function, given)

    monkeypatch.setattr(searching, "_score", score)
    monkeypatch.setattr(searching, "spread", spread_out)
    monkeypatch.setattr(optuna.importance, "get_param_importances", lambda study: {"smoothing": 1.0})
    return calls, groups


def test_a_search_tells_each_trial_and_returns_the_best_first(scored):
    (calls, groups), told = scored, []
    source = Source([WAVE])
    found = searching.tune(
        *("ewma", source),
        **{"trials": 5, "at_once": 2, "hold_out": ["b"], "training": TRAINING, "seed": 3},
        tell=lambda number, score: told.append((number, score)),
    )
    assert groups == [2, 2, 1]
    asked = [call[1]["smoothing"] for call in calls]
    assert told == [(k, abs(one - 0.5)) for k, one in enumerate(asked)]
    for predictor, arguments, *rest in calls:
        assert predictor.configuration() == EWMA().configuration()
        assert list(arguments) == ["smoothing"]
        assert rest == [TRAINING, source, ["b"], 3]
    best = sorted(asked, key=lambda one: abs(one - 0.5))
    assert list(found.trials) == ["smoothing", "score"]
    assert found.trials["smoothing"].tolist() == best
    assert found.trials["score"].tolist() == [abs(one - 0.5) for one in best]
    assert (found.predictor.smoothing, found.score) == (best[0], abs(best[0] - 0.5))
    assert found.mattered.to_dict("list") == {"argument": ["smoothing"], "share": [1.0]}


def test_a_search_holds_out_three_tenths_and_proposes_one_at_a_time(scored):
    calls, groups = scored
    searching.tune("ewma", [WAVE], trials=2)
    assert groups == [1, 1]
    assert [call[2:3] + call[4:] for call in calls] == [(None, 0.3, 0)] * 2
    first = [call[1]["smoothing"] for call in calls]
    searching.tune("ewma", [WAVE], trials=2, seed=1)
    assert [call[1]["smoothing"] for call in calls[2:]] != first
    searching.tune("ewma", [WAVE], trials=2)
    assert [call[1]["smoothing"] for call in calls[4:]] == first


def test_arguments_that_are_given_are_not_tried(scored):
    with pytest.raises(
        ValueError, match=r"ewma:smoothing=0\.3 has no argument that is tried; tried are \['lags', 'cov"
    ):
        searching.tune("ewma:smoothing=0.3", [WAVE])
    assert searching._arguments(named("narx")) == ["lags", "covariate_lags", "hidden", "learning_rate", "weight_decay"]
    for kind in KINDS:
        tried, own = searching._arguments(kind()), kind().configuration()
        named_so = [one for one in own if one in (*searching.WHOLE, *searching.REAL)]
        of_training = {"learning_rate", "weight_decay"} if "training" in own else set()
        assert tried[: len(named_so)] == named_so
        assert set(tried) == {*named_so} | of_training
        assert len(set(tried)) == len(tried)


def test_arguments_are_proposed_on_a_logarithmic_scale():
    asked = []
    trial = SimpleNamespace(
        suggest_int=lambda *given, **how: asked.append(("whole", given, how)) or 3,
        suggest_float=lambda *given, **how: asked.append(("real", given, how)) or 0.5,
    )
    assert (searching._suggested(trial, "lags"), searching._suggested(trial, "smoothing")) == (3, 0.5)
    assert asked == [("whole", ("lags", 2, 24), {"log": True}), ("real", ("smoothing", 0.01, 1.0), {"log": True})]


def test_a_predictors_own_training_is_used_if_none_is_given_and_the_usual_if_it_has_none():
    assert searching._with(NARX(training=TRAINING), {"learning_rate": 0.02}, None).training.epochs == 3
    assert searching._with(NARX(training=None), {"learning_rate": 0.02}, None).training == Training(learning_rate=0.02)
    assert searching._with(EWMA(smoothing=0.2), {}, TRAINING).smoothing == 0.2


# -- trials that fail ------------------------------------------------------------------------------------------------


def study_of(*states):
    return SimpleNamespace(trials=[SimpleNamespace(state=SimpleNamespace(name=name)) for name in states])


def test_a_search_stops_after_five_failures_if_nothing_succeeded(caplog):
    with caplog.at_level(logging.WARNING):
        searching._note_failure(study_of(*["FAIL"] * 4, "RUNNING"), {"lags": 3}, "too short")
        searching._note_failure(study_of(*["FAIL"] * 6, "COMPLETE"), {"lags": 3}, "too short")
    assert caplog.messages == ["a trial with {'lags': 3} failed: too short"] * 2
    with pytest.raises(ValueError, match=r"^all 5 trials failed, the last with {'lags': 3}: too short$"):
        searching._note_failure(study_of(*["FAIL"] * 5), {"lags": 3}, "too short")


def test_a_trial_that_fails_is_told_without_a_score_and_tried_anew(monkeypatch):
    told, left = [], [True, False, True, False]

    def score(*call):
        if left.pop(0):
            raise ValueError("too short")
        return 0.5

    monkeypatch.setattr(searching, "_score", score)
    found = searching.tune("ewma", [WAVE], trials=2, hold_out=["b"], tell=lambda *one: told.append(one))
    assert [number for number, _ in told] == [0, 1, 2, 3]
    assert [math.isnan(one) for _, one in told] == [True, False, True, False]
    assert found.trials["score"].tolist() == [0.5, 0.5]
    assert np.isnan(found.mattered["share"]).all()


# -- the score -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fitted(monkeypatch):
    """What is fitted: nothing, but with a warning that a fit may give."""
    given = []

    def fit(predictor, source, **how):
        warnings.warn("few windows", stacklevel=1)
        given.append((predictor, source, how))
        return predictor

    monkeypatch.setattr(searching, "fit", fit)
    return given


def test_a_score_is_the_geometric_mean_over_held_out_workers_of_errors_beside_the_last_values(fitted):
    rng = np.random.default_rng(0)
    long, short = rng.uniform(1, 2, (5, 25)), rng.uniform(1, 2, (2, 21))
    long[1] = 3.0  # never changes
    long[3, 18:] = np.nan  # has no error that counts
    source = Source(
        [
            trace_of(*long, workers=["a", "b", "c", "d", "e"], meta={"job": "long"}),
            trace_of(*short, workers=["a", "c"], meta={"job": "short"}),
            trace_of(rng.uniform(1, 2, 20), workers=["c"], meta={"job": "too short"}),
            trace_of(rng.uniform(1, 2, 25), workers=["a"], meta={"job": "nobody"}),
        ]
    )
    found = searching._score(EWMA(), {"smoothing": 0.5}, None, source, ["b", "c", "d", "e"], 4)

    def errors(speed, smoothing):
        level, off = speed[0], []
        for now in speed[1:]:
            off.append(level - now)
            level += smoothing * (now - level)
        return math.sqrt(sum(one**2 for one in off[19:]))

    ratios = [errors(speed, 0.5) / errors(speed, 1.0) for speed in (long[2], long[4], short[1])]
    assert found == pytest.approx(math.prod(ratios) ** (1 / 3))
    ((predictor, same, how),) = fitted
    assert (predictor.smoothing, same is source) == (0.5, True)
    assert how == {"hold_out": ["b", "c", "d", "e"], "seed": 4, "warn": False}


def test_a_forecast_without_error_has_the_least_score_and_without_a_worker_there_is_none(fitted, monkeypatch):
    off = SimpleNamespace(rmse=np.array([0.0, 0.04])), SimpleNamespace(rmse=np.array([2.0, 4.0]))
    both = iter(off)
    monkeypatch.setattr(searching, "backtest", lambda one, part, warmup: next(both))
    assert searching._score(EWMA(), {}, None, Source([WAVE]), ["a", "b"], 0) == pytest.approx(math.sqrt(1e-12 * 0.01))
    both = iter(off[::-1])
    assert searching._score(EWMA(), {}, None, Source([WAVE]), ["a", "b"], 0) == pytest.approx(100.0)
    with pytest.raises(ValueError, match="no validation worker's speed changes after the first iterations"):
        searching._score(EWMA(), {}, None, Source([WAVE]), ["c"], 0)
