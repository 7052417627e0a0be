"""Base class of all predictors of a fleet: the list of workers, their state as arrays, guards around a forecast.

A predictor that inherits from `FleetPredictor` overrides three small methods: `initial_state`, `update` and
`forecast_speed`. This class does the rest of the contract. Axes: W workers, D covariates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Mask, any_true
from paceline._text import join_names
from paceline.predictors.protocol import MAX_SPEED, MAX_VALUE, MIN_SPEED, Forecast, Predictor, Report

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace


DAMAGED = "the model state is damaged; fit and save the model again"
"""The end of errors about fitted parameters that no model can have."""


class Params:
    """Base class of objects whose attributes are the arguments of their constructor.

    >>> from paceline.predictors import EWMA, Calibrated
    >>> EWMA().set_params(smoothing=0.5)
    EWMA(smoothing=0.5)
    >>> Calibrated(EWMA(0.1)).get_params()
    {'predictor': EWMA(smoothing=0.1), 'predictor__smoothing': 0.1}
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name; ``deep`` adds those of predictors inside as ``inner__name``."""
        params = {name: getattr(self, name) for name in signature(type(self)).parameters}
        inside = {name: value for name, value in params.items() if deep and isinstance(value, Params)}
        for name, inner in inside.items():
            params |= {f"{name}__{key}": value for key, value in inner.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and start again without state: all that was learned is dropped."""
        if not params:
            return self
        mine = self.get_params(deep=False)
        # Own arguments first: a predictor inside may be replaced and changed in one call.
        for name in sorted(params, key=lambda name: "__" in name):
            outer, _, rest = name.partition("__")
            if outer not in mine or (rest and not isinstance(mine[outer], Params)):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {list(mine)}")
            mine[outer] = copy.copy(mine[outer]).set_params(**{rest: params[name]}) if rest else params[name]
        self.__dict__ = vars(type(self)(**mine))
        return self

    def __repr__(self) -> str:
        """Return the class and the arguments that differ from their defaults."""
        params = signature(type(self)).parameters
        changed = [f"{n}={v!r}" for n, v in self.get_params(deep=False).items() if repr(v) != repr(params[n].default)]
        return f"{type(self).__name__}({', '.join(changed)})"


def require_int(name: str, value: object, minimum: int, maximum: int = 10_000) -> int:
    """Return a whole number within its range."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, got {value!r}")
    return int(value)


def validated_covariate_names(covariates: Sequence[str]) -> tuple[str, ...]:
    """Return names of covariates; refuse one bare text, which would be taken for a name in each letter."""
    names = tuple(covariates) if isinstance(covariates, Iterable) else (None,)
    if isinstance(covariates, str) or not all(isinstance(name, str) for name in names):
        example = [covariates] if isinstance(covariates, str) else ["cpu_share"]
        raise ValueError(f"covariates must be a list of names such as {example}, got {covariates!r}")
    return names


def load_finite(state: Mapping[str, NDArray[Any]], name: str, default: Array) -> Array:
    """Return a copy of a fitted array, or of the default if none was saved; refuse one that does not fit."""
    values = np.array(state.get(name, default))
    if values.shape != default.shape or not np.isfinite(values).all():
        raise ValueError(
            f"the saved {name} must hold finite numbers in the shape {default.shape}, got an array of shape "
            f"{values.shape}: {DAMAGED}"
        )
    return values


MAX_UNCONFIRMED_RISE = float(np.log(100.0))
"""A log speed that is so far above the forecast is accepted only if the next report says the same."""


class FleetPredictor(Params):
    """Base class of predictors whose state is one row of arrays per worker.

    Override :meth:`initial_state`, :meth:`update` and :meth:`forecast_speed`; for state that all workers share,
    :meth:`initial_shared_state`; for what ``fit`` learns, :meth:`fitted_state` and :meth:`load_fitted_state`.

    Before the first report all speeds are forecast as 1; later a worker that has not reported as the median of those
    that have. Its spread is infinite. A single report more than 100 times as fast as the forecast counts as none.

    Attributes
    ----------
    workers
        The fleet, in the order of every array.
    state
        One array for each name of :meth:`initial_state`, with a row per worker. :meth:`update` replaces its arrays.
    shared_state
        The arrays of :meth:`initial_shared_state`.

    Examples
    --------
    The mean of the last two speeds:

    >>> from paceline.predictors import Report
    >>> class MeanOfTwo(FleetPredictor):
    ...     def initial_state(self, num_workers):
    ...         return {"mean": np.full(num_workers, np.nan), "last": np.full(num_workers, np.nan)}
    ...
    ...     def update(self, speed_W, covariates_WD):
    ...         last_W = np.where(np.isnan(speed_W), self.state["last"], speed_W)
    ...         before_W = np.where(np.isnan(self.state["last"]), last_W, self.state["last"])
    ...         self.state = {"mean": (before_W + last_W) / 2, "last": last_W}
    ...
    ...     def forecast_speed(self, covariates_WD, horizon):
    ...         return self.state["mean"]
    >>> model = MeanOfTwo()
    >>> model.reset(["a", "b"])
    >>> for seconds in (0.5, 1.0):
    ...     model.observe(Report(samples=[32, 32], seconds=[seconds, 0.5]))
    >>> model.predict().speed
    array([48., 64.])
    """

    skipped_checks: ClassVar[Mapping[str, str]] = {}
    """Contract checks that do not apply to this predictor, each with the reason."""

    workers: tuple[str, ...] = ()

    _error_smoothing: ClassVar[float] = 0.05
    """Weight of the newest squared error: the spread remembers about the last 20 iterations."""

    covariate_names_: tuple[str, ...] = ()

    columns: int = 1
    """Forecasts that it makes of each worker: above 1 only for experts that a mixture asks."""

    def __init__(self) -> None:
        self.state: dict[str, Array] = {}
        self.shared_state: dict[str, Array] = {}
        self._cached_covariates: tuple[bytes, Array] = (b"", np.empty((0, 0)))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and "_cached_covariates" not in self.__dict__:
            code = type(self).__init__.__code__
            place = f"{code.co_filename}, line {code.co_firstlineno}"
            raise RuntimeError(f"{type(self).__qualname__}.__init__ ({place}) must call super().__init__()")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- what a predictor overrides ----------------------------------------------------------------------------------

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        """Return the state of ``num_workers`` workers that have not reported: arrays with one row per worker."""
        raise NotImplementedError(f"{type(self).__name__} must define initial_state(num_workers)")

    def initial_shared_state(self) -> dict[str, Array]:
        """Return the state that all workers of a fleet share, before the first report; most predictors have none."""
        return {}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        """Learn one iteration; speeds and covariates are NaN where there was no report."""
        raise NotImplementedError(f"{type(self).__name__} must define update(speed_W, covariates_WD)")

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        """Return the speed expected ``horizon`` iterations ahead, NaN where nothing is known yet."""
        if type(self).forecast_log_speed is FleetPredictor.forecast_log_speed:
            raise NotImplementedError(f"{type(self).__name__} must define forecast_speed(covariates_WD, horizon)")
        return np.exp(self.forecast_log_speed(covariates_WD, horizon))

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        """Return the log of that speed, or of each of its columns: override this one to work in log speed."""
        return np.asarray(np.log(self.forecast_speed(covariates_WD, horizon)))

    # -- what predictors of batch time curves override -----------------------------------------------------------

    def forecast_speed_at(self, samples_W: Array, covariates_WD: Array) -> Array:
        """Return the speed expected next at these batch sizes; only with curves does it depend on them."""
        return self.forecast_speed(covariates_WD, 1)

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        """Return the forecast; a predictor of curves adds them."""
        speed_W = self.forecast_speed(covariates_WD, horizon)
        return Forecast(speed=fill_unknown_speeds(speed_W), spread=self._spread(speed_W, horizon))

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        """Learn one iteration from the whole report; most predictors only need the speeds."""
        self.update(speed_W, covariates_WD)

    # -- the contract ---------------------------------------------------------------------------------------------

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads: those chosen, or those it was fitted with."""
        return self.covariate_names_

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Learn from these traces; a predictor that learns only from what it observes does nothing here."""
        from paceline.predictors.fitting import FitOptions, as_traces

        streamed = getattr(self, "fit_streamed", None)
        return self if streamed is None else streamed(as_traces(traces), FitOptions())

    def reset(self, workers: Sequence[str]) -> None:
        """Start, or start again, with this fleet and no memory of any iteration."""
        names = tuple(map(_validate_name, workers))
        if len(set(names)) != len(names):
            repeated = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"workers must not repeat a name, got {repeated}")
        self.workers = names
        self.state = self._initial_worker_states(len(names))
        self.shared_state = self.initial_shared_state()
        for child in self._children():
            child.reset(names)

    def join(self, worker: str) -> None:
        """Add a worker at the end of the fleet; the others keep their state."""
        worker = self._validate_new_name(worker)
        newcomer = self._initial_worker_states(1)
        if self.workers:
            newcomer = {name: np.concatenate([rows, newcomer[name]]) for name, rows in self.state.items()}
        self.state = _to_fortran_order(newcomer)
        self.workers = (*self.workers, worker)
        for child in self._children():
            child.join(worker)

    def leave(self, worker: str) -> None:
        """Remove a worker; the others keep their state."""
        i = self._worker_index(worker)
        self.state = _to_fortran_order({name: np.delete(rows, i, axis=0) for name, rows in self.state.items()})
        self.workers = self.workers[:i] + self.workers[i + 1 :]
        for child in self._children():
            child.leave(worker)

    def rename(self, old: str, new: str) -> None:
        """Rename a worker; it keeps its place and its state.

        Use it for a process that starts again on the same machine, or a rank that gets a new number.
        """
        i = self._worker_index(old)
        self.workers = (*self.workers[:i], self._validate_new_name(new), *self.workers[i + 1 :])
        for child in self._children():
            child.rename(old, new)

    @np.errstate(all="ignore")  # reports may hold any number; what comes of it is clipped or counts as missing
    def observe(self, report: Report) -> None:
        """Learn from the measurements of the iteration just finished, and how far its forecast was off."""
        self._require_fleet()
        if len(report.speed) != len(self.workers):
            raise ValueError(
                f"the report must have one entry for each of the {len(self.workers)} workers, got {len(report.speed)}; "
                "call reset, join or leave when the fleet changes"
            )
        covariates_WD, speed_W = self._validated_covariates(report.covariates), report.speed
        if report.out_of_memory is not None:  # such a worker did not process its samples
            speed_W = np.where(np.asarray(report.out_of_memory, dtype=bool), np.nan, speed_W)
        error_W = np.log(speed_W / self.forecast_speed_at(np.asarray(report.samples, dtype=np.float64), covariates_WD))
        doubted_W = self._find_unconfirmed(error_W, speed_W)
        if any_true(doubted_W):
            report = hide_workers(report, doubted_W)
            speed_W, error_W = (np.where(doubted_W, np.nan, values_W) for values_W in (speed_W, error_W))
        self._track_error(error_W)
        saved = {name: self.state[name] for name in ("squared_error", "doubted")}
        self.update_from_report(report, speed_W, covariates_WD)
        if not saved.keys() <= self.state.keys():  # update may replace the state that initial_state made
            self.state |= saved

    @np.errstate(all="ignore")
    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        """Forecast the iteration ``horizon`` ahead. Pure: a second call gives the same answer."""
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 iteration, got {horizon}")
        self._require_fleet()
        return self.make_forecast(self._validated_covariates(covariates), horizon)

    def predict_frame(
        self, horizons: Sequence[int] = (1,), *, covariates: ArrayLike | None = None, interval: float = 0.9
    ) -> pd.DataFrame:
        """Forecast several horizons, in iterations ahead, as a tidy frame: a row for each horizon and worker.

        The speed lies between ``low`` and ``high`` with the probability ``interval``.

        Examples
        --------
        >>> from paceline.predictors import EWMA, Report
        >>> model = EWMA()
        >>> model.reset(["a", "b"])
        >>> model.observe(Report(samples=[64, 64], seconds=[1.0, 2.0]))
        >>> model.predict_frame([1, 5])[["horizon", "worker", "speed"]]
           horizon worker  speed
        0        1      a   64.0
        1        1      b   32.0
        2        5      a   64.0
        3        5      b   32.0
        """
        import pandas as pd

        if isinstance(horizons, str) or not isinstance(horizons, Iterable) or not len(horizons):
            raise TypeError(f"horizons must be a list of numbers of iterations, such as [1, 5, 20], got {horizons!r}")
        if not 0.0 < interval < 1.0:
            raise ValueError(f"interval must lie strictly between 0 and 1, got {interval}")
        parts = []
        for horizon in horizons:
            forecast = self.predict(covariates=covariates, horizon=horizon)
            low, high = forecast.quantile((1.0 - interval) / 2), forecast.quantile((1.0 + interval) / 2)
            columns = {"speed": forecast.speed, "low": low, "high": high}
            parts.append(pd.DataFrame({"horizon": horizon, "worker": list(self.workers), **columns}))
        return pd.concat(parts, ignore_index=True)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned and observed, as arrays."""
        rows = {f"rows/{name}": rows.copy() for name, rows in self.state.items()}
        rows |= {f"fleet/{name}": values.copy() for name, values in self.shared_state.items()}
        learned = {f"learned/{name}": value.copy() for name, value in self.fitted_state().items()}
        return {"workers": np.array(self.workers, dtype=np.str_), **rows, **learned}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned."""
        # Fitted parameters first: the width of the rows that reset makes may depend on them, such as on the covariates.
        learned = {name.removeprefix("learned/"): value for name, value in state.items() if name.startswith("learned/")}
        self.load_fitted_state(learned)
        self.reset([str(worker) for worker in state.get("workers", ())])
        saved = {name.removeprefix("rows/") for name in state if name.startswith("rows/")}
        if self.workers and saved != set(self.state):
            raise ValueError(
                f"the state of {type(self).__name__}'s workers must hold {sorted(self.state)}, got {sorted(saved)}: "
                "it was saved by a predictor of another class; load it into one of that class"
            )
        self.state = {name: self._load_array(state, f"rows/{name}", rows) for name, rows in self.state.items()}
        fleet = self.shared_state
        self.shared_state = {name: self._load_array(state, f"fleet/{name}", values) for name, values in fleet.items()}

    def _load_array(self, state: Mapping[str, NDArray[Any]], name: str, default: Array) -> Array:
        """Return one saved array, or the fresh one if there is none: a model file holds no fleet."""
        saved = np.asarray(state.get(name, default))
        if saved.shape != default.shape:
            raise ValueError(
                f"state {name!r} must have the shape {default.shape}, got {saved.shape}: it was saved by a "
                f"{type(self).__name__} with other arguments; create this one with the same arguments"
            )
        return saved.astype(default.dtype, order="F", copy=True)

    # -- what predictors that learn from traces override ---------------------------------------------------------

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state:
            raise ValueError(
                f"{type(self).__name__} learns nothing from traces, but the state holds {sorted(state)}: load it into "
                "a predictor with the class and arguments of the one that was fitted"
            )

    def _children(self) -> Sequence[Predictor]:
        """Return the predictors that it is made of, which always have the same workers."""
        return ()

    # -- guards --------------------------------------------------------------------------------------------------

    def _track_error(self, error_W: Array) -> None:
        """Smooth each worker's squared error in log speed: half as fast counts the same as twice as fast."""
        before_W, newest_W = self.state["squared_error"], np.square(error_W)
        smoothed_W = before_W + self._error_smoothing * (newest_W - before_W)
        known_W = np.where(np.isnan(before_W), newest_W, smoothed_W)
        self.state["squared_error"] = np.where(np.isfinite(newest_W), known_W, before_W)

    def _forget(self, reset_W: Mask) -> None:
        """Reset these workers to their initial state; the others keep theirs."""
        fresh = self._initial_worker_states(int(reset_W.sum()))
        for name, rows in self.state.items():
            # A new array, not a change in place: caches recognize the state that they belong to by its arrays.
            self.state[name] = rows.copy(order="F")
            self.state[name][reset_W] = fresh[name]

    def _find_unconfirmed(self, error_W: Array, speed_W: Array) -> Mask:
        """Return whose speeds are far above the forecast for the first time: the next report must confirm them.

        A clock that jumps reports a step of no time. Slow speeds are accepted at once: stalls are real.
        """
        before_W = self.state["doubted"]
        far_W = (error_W > MAX_UNCONFIRMED_RISE) & (before_W == 0)  # False where an error is NaN
        self.state["doubted"] = np.where(np.isnan(speed_W), before_W, far_W)
        return np.asarray(far_W)

    def _spread(self, speed_W: Array, horizon: int) -> Array:
        """Return the relative deviation of these speeds; infinite where a speed is NaN or was never compared."""
        spread_W = np.sqrt(self.state["squared_error"] * horizon)
        return np.where(np.isfinite(spread_W) & np.isfinite(speed_W), spread_W, np.inf)

    def _initial_worker_states(self, num_workers: int) -> dict[str, Array]:
        guards = {"squared_error": np.full(num_workers, np.nan), "doubted": np.zeros(num_workers)}
        return _to_fortran_order({**self.initial_state(num_workers), **guards})

    def _worker_index(self, worker: str) -> int:
        if worker not in self.workers:
            raise ValueError(f"worker {worker!r} is not in the fleet: {join_names(self.workers, limit=8)}")
        return self.workers.index(worker)

    def _validate_new_name(self, worker: str) -> str:
        if worker in self.workers:
            raise ValueError(f"worker {worker!r} is already in the fleet: give a new one another name")
        return _validate_name(worker)

    def _require_fleet(self) -> None:
        if not self.workers:
            raise ValueError("there is no fleet yet: call reset(workers) with the workers' names first")

    def _validated_covariates(self, covariates: ArrayLike | None) -> Array:
        """Return the covariates, NaN where unknown; the same object for the same question, so that caches know it."""
        names = self.covariate_names
        expected = (len(self.workers), len(names))
        if covariates is None or not names:
            rows, key = np.empty(expected), b""
        else:
            rows = np.asarray(covariates, dtype=np.float64, order="F")
            key = rows.tobytes()
        if rows.shape != expected:
            raise ValueError(
                f"covariates must have the shape [workers, covariates] {expected}, in the order {list(names)}, "
                f"got {rows.shape}"
            )
        if self._cached_covariates[0] != key or self._cached_covariates[1].shape != expected:
            # Running means and spreads of values beyond MAX_VALUE would not come back within a job.
            known = np.where(np.abs(rows) < MAX_VALUE, rows, np.nan) if key else np.full(expected, np.nan)
            self._cached_covariates = (key, np.asfortranarray(known))
        return self._cached_covariates[1]


def _to_fortran_order(worker_states: dict[str, Array]) -> dict[str, Array]:
    """Lay the workers side by side in memory (Fortran order): work on many short rows is then several times faster."""
    return {name: np.asfortranarray(values) for name, values in worker_states.items()}


def _validate_name(worker: object) -> str:
    """Return a worker's name as text; refuse an empty one."""
    if not str(worker):
        raise ValueError("a worker's name must not be empty, got ''")
    return str(worker)


def hide_workers(report: Report, left_out_W: Mask) -> Report:
    """Return the report without these workers' measurements."""
    samples_W, seconds_W = (np.where(left_out_W, np.nan, values_W) for values_W in (report.samples, report.seconds))
    return replace(report, samples=samples_W, seconds=seconds_W)


def fill_unknown_speeds(speed_W: Array) -> Array:
    """Return valid speeds: an unknown one is the median of those that are known."""
    if np.minimum.reduce(speed_W) >= MIN_SPEED and np.maximum.reduce(speed_W) <= MAX_SPEED:  # NaN is neither
        return speed_W.copy()  # it may be the state itself
    known_W = np.isfinite(speed_W)
    # samples/s before the first report; only ratios matter, so any value works
    prior = float(np.median(speed_W[known_W])) if known_W.any() else 1.0
    return np.clip(np.where(known_W, speed_W, prior), MIN_SPEED, MAX_SPEED)
