"""Choose a predictor's arguments by trials: fitted to some workers, compared on others; and say what mattered."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._require import require
from paceline._runtime import map_calls
from paceline.eval.backtest import backtest
from paceline.predictors import FleetPredictor, LastValue, Training, named
from paceline.training.fit import choose_held_out, fit, held_out_predicate
from paceline.training.sources import Source, TraceSource

if TYPE_CHECKING:
    import pandas as pd

INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "lags": (2, 24),
    "covariate_lags": (1, 12),
    "hidden": (4, 64),
}
"""Whole arguments that are tried, and their ranges: beyond, fits on recorded jobs only took longer."""

REAL_RANGES: Mapping[str, tuple[float, float]] = {
    "smoothing": (0.01, 1.0),
    "forgetting": (0.901, 0.9999),  # RLS refuses 0.9 itself
    "learning_rate": (3e-4, 3e-2),
    "weight_decay": (1e-3, 1.0),
}
"""Real arguments that are tried, on a logarithmic scale."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Tuned:
    """Result of a search: the best arguments, their score, all trials, and which arguments mattered.

    Parameters
    ----------
    predictor
        The best arguments, unfitted: fit it to all workers.
    score
        Its RMSE over the last value's on the validation workers, the geometric mean over them.
    trials
        One row per trial: its arguments and its score, best first.
    mattered
        One row per argument: ``argument`` and ``share``, of the scores' variance that it explains.
    """

    predictor: FleetPredictor
    score: float
    trials: pd.DataFrame
    mattered: pd.DataFrame


def tune(
    name: str,
    traces: TraceSource | Source,
    *,
    trials: int = 20,
    at_once: int = 1,
    hold_out: float | Collection[str] = 0.3,
    storage: str | Path | None = None,
    training: Training | None = None,
    seed: int = 0,
    on_trial: Callable[[int, float], None] = lambda number, score: None,
) -> Tuned:
    """Try arguments of a predictor, and return the best.

    Parameters
    ----------
    name
        A kind, with the arguments that are not to be tried: ``"narx:covariates=()"``.
    traces
        As for :func:`paceline.training.fit`.
    trials
        Trials in all, including those that ``storage`` holds already.
    at_once
        Trials proposed together; ``joblib.parallel_config`` spreads them over cores or a cluster.
    hold_out
        Share of the workers, or their names, on which trials are compared and which none is fitted to.
    storage
        A journal of the trials: called again with it, the search goes on.
    training
        How networks are trained, apart from what is tried.
    seed
        Decides which arguments are tried, and which workers are held out.
    on_trial
        Called after each trial with its number and score.

    Raises
    ------
    ImportError
        If Optuna is not installed.
    ValueError
        If the predictor has no argument to try, no worker is left to compare on, every trial failed, or ``storage``
        holds trials on other traces or with other options, whose scores cannot be compared.

    Examples
    --------
    >>> from paceline.predictors import checks
    >>> tuned = tune("ewma", [checks.example_trace()], trials=3, hold_out=["b"])
    >>> bool(tuned.predictor.smoothing == tuned.trials["smoothing"][0])
    True
    """
    require("optuna", needed_by="tune", extra="tune")
    import optuna
    import pandas as pd

    source = traces if isinstance(traces, Source) else Source(traces)
    fixed = set(re.findall(r"(\w+)=", name))
    mine = named(name).get_params(deep=False)
    inside = ["learning_rate", "weight_decay"] if "training" in mine else []
    known = [argument for argument in (*mine, *inside) if argument in (*INTEGER_RANGES, *REAL_RANGES)]
    tried = [argument for argument in dict.fromkeys(known) if argument not in fixed]
    if not tried:
        raise ValueError(
            f"{name} has no argument that can be tuned; those that can are {[*INTEGER_RANGES, *REAL_RANGES]}"
        )
    workers = sorted({worker for trace in source for worker in trace.workers})
    held = sorted(choose_held_out(hold_out, workers, seed)) or hold_out
    # what makes the scores of two trials comparable
    compared_on = held if isinstance(held, int | float) else sorted(held)
    about = [[fact.digest for fact in source.facts], compared_on, repr(training)]
    study = _open_study(storage, name, seed, hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16])
    while (missing := trials - len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))) > 0:
        proposed = [study.ask() for _ in range(min(at_once, missing))]
        for trial in proposed:
            for argument in tried:
                if argument in INTEGER_RANGES:
                    trial.suggest_int(argument, *INTEGER_RANGES[argument], log=True)
                else:
                    trial.suggest_float(argument, *REAL_RANGES[argument], log=True)
        calls = [(named(name), trial.params, training, source, held, seed) for trial in proposed]
        for trial, (score, why) in zip(proposed, map_calls(_score_trial, calls), strict=True):
            if why:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                # such as where there are fewer iterations than lags
                logger.warning("a trial with %s failed: %s", trial.params, why)
                states = [one.state.name for one in study.trials]
                # after 5 failures the arguments are not the cause
                if "COMPLETE" not in states and (failed := states.count("FAIL")) >= 5:
                    raise ValueError(f"all {failed} trials failed, the last with {trial.params}: {why}")
            else:
                study.tell(trial, score)
            on_trial(trial.number, score)
    done = sorted(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]), key=lambda trial: trial.value)
    table = pd.DataFrame([{**trial.params, "score": trial.value} for trial in done])
    best = _with_arguments(named(name), done[0].params, training)
    return Tuned(best, float(done[0].value), table, _explain_scores(study, done, tried))


def _with_arguments(
    predictor: FleetPredictor, arguments: Mapping[str, Any], training: Training | None
) -> FleetPredictor:
    """Return a new predictor of the same kind with these arguments."""
    mine = predictor.get_params(deep=False)
    selected = {name: value for name, value in arguments.items() if name in mine}
    if "training" in mine:
        inside = {name: value for name, value in arguments.items() if name not in mine}
        selected["training"] = replace(training or mine["training"] or Training(), **inside)
    return type(predictor)(**{**mine, **selected})


def _score_trial(
    predictor: FleetPredictor,
    arguments: Mapping[str, Any],
    training: Training | None,
    source: Source,
    hold_out: float | Collection[str],
    seed: int,
) -> tuple[float, str]:
    """Return a trial's score, or why it has none.

    It is the geometric mean over validation workers of the RMSE over the last value's, on their last iterations.
    """
    is_held, ratios = held_out_predicate(hold_out, seed), []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = fit(
                _with_arguments(predictor, arguments, training), source, hold_out=hold_out, seed=seed, warn=False
            )
        for trace in source:
            names = [worker for worker in trace.workers if is_held(worker)]
            # predictors are still learning in the first 20 iterations
            if names and len(trace) > 20:
                part = trace.select(workers=names)
                mine, last = (backtest(one, part, warmup=20).rmse for one in (fitted, LastValue()))
                ratios += [a / b for a, b in zip(mine, last, strict=True) if np.isfinite(a) and b > 0]
    except ValueError as error:
        return float("nan"), str(error)
    if not ratios:
        return float("nan"), "no validation worker's speed changes after the first iterations: hold out others"
    return float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-12))))), ""


def _open_study(storage: str | Path | None, name: str, seed: int, identity: str) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = None
    if storage is not None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        try:
            # a foreign file may have a first line without end; Optuna would fail without naming it, or append to it
            with Path(storage).open(encoding="utf-8") as file:
                first = file.readline(1 << 16)
            is_journal = not first or "op_code" in json.loads(first)
        except FileNotFoundError:
            is_journal = True
        except (OSError, ValueError, TypeError):
            is_journal = False
        if not is_journal:
            raise ValueError(
                f"{storage}: is not a journal of trials: name another file, or one that does not exist yet"
            )
        place = JournalStorage(JournalFileBackend(str(storage)))
    study = optuna.create_study(storage=place, study_name=name, load_if_exists=True)
    if (known := study.user_attrs.get("of", identity)) != identity:
        raise ValueError(
            f"{storage}: holds trials on other traces, held-out workers or options, whose scores cannot be "
            f"compared (they are of {known}, these of {identity}): use another file"
        )
    study.set_user_attr("of", identity)
    # A search that goes on must not draw the numbers again that it began with.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def _explain_scores(study: Any, done: list[Any], tried: list[str]) -> pd.DataFrame:
    import optuna
    import pandas as pd

    shares = dict.fromkeys(tried, float("nan"))
    if len(done) >= 4 and len({trial.value for trial in done}) > 1:  # fewer say nothing
        shares |= optuna.importance.get_param_importances(study)
    rows = sorted(shares.items(), key=lambda item: -item[1])
    return pd.DataFrame(rows, columns=["argument", "share"])
