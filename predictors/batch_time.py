"""Batch time curves: the predictor for devices whose time is not proportional to the batch.

A GPU's step takes ``t(x) = max(floor, intercept + slope * x)``: flat until the device is saturated, then a line whose
intercept makes proportional shares wrong. Disturbances multiply it: ``t = curve(x) / relative speed``. Any other
predictor forecasts the relative speed, as if it were a speed.

Axes: W workers, D covariates, F fields, N measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._curves import Curves
from paceline._text import join_names
from paceline.predictors.curve_fit import fit_curve, weights_by_nearness, weights_by_uncertainty
from paceline.predictors.fitting import FitOptions, fit_with
from paceline.predictors.fleet import DAMAGED
from paceline.predictors.named import named
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.protocol import MAX_SPEED, MIN_SPEED, Forecast, Report

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace


CURVE_FIELDS = ("floor", "slope", "intercept", "most", "size")
"""The fields of a device's row; ``most`` is the memory limit, ``size`` a batch size it was measured at."""

PROPORTIONAL_CURVE = np.array([0.0, 1.0, 0.0, np.inf, 1.0])
"""The curve of an unknown device: its relative speed then equals its speed in samples/s."""


def fit_device_curves(traces: Iterable[Trace], device_of: Callable[[str], str], near: float | None) -> dict[str, Array]:
    """Fit one curve to each device type whose batch size varied, ``[F]`` each; the others get none.

    If the size is constant within each job and differs between jobs, the times differ because the jobs train different
    models. Traces with varying sizes are taken to be jobs of one model.
    """
    measured_2N: dict[str, Array] = {}
    for trace in traces:
        device_W = np.array([device_of(worker) for worker in trace.workers])
        for device in dict.fromkeys(device_W):
            seen_TW = np.isfinite(trace.speed) & (device_W == device)
            points_2N = np.stack([trace.samples[seen_TW], trace.seconds[seen_TW]])
            if _determines_line(points_2N[0]):
                earlier_2N = measured_2N.get(str(device), points_2N[:, :0])
                measured_2N[str(device)] = np.concatenate([earlier_2N, points_2N], axis=1)
    return {device: _fit_curve_row(points_2N[0], points_2N[1], near) for device, points_2N in measured_2N.items()}


def _determines_line(size_N: Array) -> bool:
    # sizes must differ by 20% to determine both slope and intercept
    return bool(size_N.max(initial=0.0) >= 1.2 * size_N.min(initial=np.inf))


def _fit_curve_row(size_N: Array, seconds_N: Array, near: float | None, weight_N: Array | None = None) -> Array:
    """Return the fitted curve as a row; each size counts once, with its median time, no matter how often measured."""
    sizes, place_N = np.unique(size_N, return_inverse=True)
    seconds = [float(np.median(seconds_N[place_N == i])) for i in range(len(sizes))]
    weights = np.ones(len(sizes)) if near is None else weights_by_nearness(sizes, near)
    if weight_N is not None:
        weights *= [weight_N[place_N == i].max() for i in range(len(sizes))]
    return np.array([*fit_curve(sizes, seconds, weights), np.inf, np.median(sizes)])


UNKNOWN_INFORMATION = 0.01
"""Information behind the slope of an unknown curve, as a sum of squared relative moves of the batch."""


class BatchTime(NestedPredictor):
    """Batch time curve of each worker, divided by a relative speed that another predictor forecasts.

    A curve starts as the one fitted to the worker or its device type, or else as ``t = x / v`` through the last report:
    while the batch size stays the same, slope and intercept are indistinguishable. Once sizes vary, every move corrects
    the slope by recursive least squares: it compares how much the time changed since the last report with how much the
    curve predicted. Old information fades only as new moves come in.

    Parameters
    ----------
    devices
        Device type of each worker, such as ``{"rank-0": "k80"}``. Workers of one type share one fitted curve; a worker
        that is not named is a type of its own.
    relative_speed
        The predictor of the relative speed, by its name and arguments as in :func:`paceline.predictors.named`.
    near
        The batch size near which fitted curves must be accurate, such as the mean batch: real curves are lines only
        over a few octaves.

    Examples
    --------
    A device takes 0.2 s plus 0.01 s per sample. While its batch stays at 40 the curve can only be proportional; when
    the batch doubles and the time does not, the curve gains its intercept:

    >>> from paceline.predictors import BatchTime, Report
    >>> model = BatchTime()
    >>> model.reset(["a"])
    >>> model.observe(Report(samples=[40], seconds=[0.6]))
    >>> model.predict().curves.seconds(np.array([80]))
    array([1.2])
    >>> for size in (80, 40, 80):
    ...     model.observe(Report(samples=[size], seconds=[0.2 + 0.01 * size]))
    >>> model.predict().curves.seconds(np.array([80])).round(2)
    array([1.])
    """

    def __init__(
        self,
        devices: Mapping[str, str] | None = None,
        relative_speed: str = "ewma",
        near: float | None = None,
    ) -> None:
        if near is not None and not near > 0:
            raise ValueError(f"near must be a batch size above 0, or None, got {near}")
        super().__init__()
        self.devices = devices
        self.relative_speed = relative_speed
        self.near = near
        self.curves_: dict[str, Array] = {}
        self._relative = named(relative_speed)
        self._inner = (self._relative,)

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        """Fit curves and relative speeds, all traces in memory; curves of other devices are kept."""
        traces = list(fit_options.drop_held_out(traces))
        self.curves_ |= fit_device_curves(traces, self._device_type, self.near)
        # With seconds under the curve in place of samples, samples / seconds is curve(x) / t: the relative speed. It is
        # a speed of its own, so what is known of the traces' covariates is looked up again.
        relatives = []
        for trace in traces:
            curve_FW = np.stack([self._initial_curve(worker) for worker in trace.workers]).T
            curve = dict(zip(CURVE_FIELDS, curve_FW, strict=True))
            relatives.append(replace(trace, samples=_curve_seconds(curve, trace.samples)))
        fit_with(self._relative, relatives, replace(fit_options, summary=None, held_out=None))
        self._cached_layout = self._cached_pairs = None
        self.reset(self.workers)
        return self

    def fit_profiles(self, profiles: pd.DataFrame) -> Self:
        """Fit the curve of each device to measured profiles: see :func:`paceline.datasets.read_profiles`.

        Of each device they must hold one curve, of sizes that differ.
        """
        curves: dict[str, Array] = {}
        for device, rows in profiles.groupby("device"):
            if len(rows[["source", "model", "held"]].drop_duplicates()) > 1:
                raise ValueError(
                    f"profiles must hold one curve for each device, but {device!r} has several: select the rows of "
                    "one source, model and held first"
                )
            size_N, seconds_N = (rows[name].to_numpy(dtype=np.float64) for name in ("batch", "seconds"))
            fits_N = np.isfinite(seconds_N)
            if not _determines_line(size_N[fits_N]):
                raise ValueError(
                    f"profiles of {device!r} must hold batches that differ in size by 20% or more, got "
                    f"{size_N[fits_N]}: measure more sizes"
                )
            weight_N = weights_by_uncertainty(rows["uncertainty"])[fits_N] if "uncertainty" in rows else None
            curve = _fit_curve_row(size_N[fits_N], seconds_N[fits_N], self.near, weight_N)
            if size_N[fits_N].max() < size_N.max():
                curve[CURVE_FIELDS.index("most")] = size_N[fits_N].max()
            curves[str(device)] = curve
        self.curves_ |= curves
        return self

    def _device_type(self, worker: str) -> str:
        return (self.devices or {}).get(worker, worker)

    def _initial_curve(self, worker: str) -> Array:
        """Return the fitted curve of this worker or its device type, ``[F]``, or the median curve if there is none."""
        known = self.curves_.get(self._device_type(worker))
        if known is not None or not self.curves_:
            return PROPORTIONAL_CURVE if known is None else known
        median = np.median(np.stack(list(self.curves_.values())), axis=0)
        median[CURVE_FIELDS.index("most")] = np.inf  # other devices' memory says nothing about this one's
        return np.asarray(median)

    def reset(self, workers: Sequence[str]) -> None:
        self._require_devices(tuple(map(str, workers)))
        super().reset(workers)
        for w in range(len(self.workers)):
            self._set_initial_curve(w)

    def join(self, worker: str) -> None:
        self._require_devices((*self.workers, str(worker)))
        super().join(worker)
        self._set_initial_curve(len(self.workers) - 1)

    def _require_devices(self, workers: Sequence[str]) -> None:
        """Refuse names in ``devices`` that match no worker, or no fitted device: the fit would silently not be used."""
        devices = self.devices or {}
        named = [worker for worker in workers if worker in devices]
        if workers and devices and not named:
            raise ValueError(
                f"none of the workers in devices ({join_names(tuple(devices))}) is in the fleet "
                f"({join_names(workers)}): use the fleet's worker names as keys"
            )
        unknown = sorted({devices[worker] for worker in named} - set(self.curves_))
        if self.curves_ and unknown:
            raise ValueError(
                f"devices names {unknown}, but curves were fitted for {sorted(self.curves_)}: use these names, or "
                "leave out a worker of an unknown device"
            )

    def _set_initial_curve(self, worker_index: int) -> None:
        for name, value in zip(CURVE_FIELDS, self._initial_curve(self.workers[worker_index]), strict=True):
            self.state[name][worker_index] = value
        fitted = self._device_type(self.workers[worker_index]) in self.curves_
        self.state["information"][worker_index] = 4.0 if fitted else UNKNOWN_INFORMATION

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        if not self.curves_:
            return {}
        return {"devices": np.array(list(self.curves_)), "curves": np.stack(list(self.curves_.values()))}

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        devices, curves = state.get("devices", ()), state.get("curves", np.empty((0, len(CURVE_FIELDS))))
        if np.shape(curves) != (len(devices), len(CURVE_FIELDS)):
            raise ValueError(
                f"the fitted curves must hold {CURVE_FIELDS} for each of {len(devices)} devices, got the shape "
                f"{np.shape(curves)}: {DAMAGED}"
            )
        self.curves_ = {str(device): np.array(curve) for device, curve in zip(devices, curves, strict=True)}

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        start = dict(zip(CURVE_FIELDS, PROPORTIONAL_CURVE, strict=True))
        start |= dict.fromkeys(("last", "last_seconds", "center"), np.nan)
        start |= {"worked": 0.0, "failed": np.inf, "information": UNKNOWN_INFORMATION, "noise": 0.0}
        return {name: np.full(num_workers, value) for name, value in start.items()}

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        rows, size_W = self.state, np.asarray(report.samples, dtype=np.float64)
        if report.out_of_memory is not None:
            ran_out_W = np.asarray(report.out_of_memory, dtype=bool) & (size_W > 0)
            rows["failed"] = np.where(ran_out_W, np.minimum(rows["failed"], size_W), rows["failed"])
            # A size that once worked and now fails proves that older successes are out of date.
            rows["worked"] = np.where(ran_out_W & (rows["worked"] >= size_W), 0.0, rows["worked"])
        seen_W = np.isfinite(speed_W)
        size_W = np.where(seen_W, size_W, np.nan)
        seconds_W = size_W / speed_W
        self._learn_slope(size_W, seconds_W)
        rows["worked"] = np.fmax(rows["worked"], size_W)
        # A success at or above the failed size proves that the failure is out of date.
        rows["failed"] = np.where(rows["worked"] >= rows["failed"], np.inf, rows["failed"])
        curve_W = _curve_seconds(rows, size_W)
        self._relative.observe(Report(samples=curve_W, seconds=seconds_W, covariates=covariates_WD))
        rows["last"] = np.where(seen_W, size_W, rows["last"])
        rows["last_seconds"] = np.where(seen_W, seconds_W, rows["last_seconds"])

    def _learn_slope(self, size_W: Array, seconds_W: Array) -> None:
        """Compare each report with the worker's last one: the batch moved in between, the relative speed hardly.

        With a smoothed past the slope would seem to vanish: a balancer gives a worker that slows down smaller batches
        while its smoothed speed is still falling.
        """
        rows = self.state
        move_W = (size_W - rows["last"]) / np.maximum(size_W, rows["last"])
        # a smaller move of the batch is the balancer's reaction to noise, which would turn into a slope
        telling_W = np.abs(move_W) > 0.5 * np.sqrt(rows["noise"])
        if telling_W.any():
            self._rotate_lines(np.where(telling_W, move_W, 0.0), size_W, seconds_W)
        surprise_W = self._time_ratio(size_W, seconds_W) - 1.0
        smoothed_W = rows["noise"] + 0.2 * (np.square(surprise_W) - rows["noise"])
        rows["noise"] = np.where(np.isfinite(smoothed_W), smoothed_W, rows["noise"])
        center_W = rows["center"]
        nearer_W = np.where(np.isnan(center_W), size_W, center_W + 0.2 * (size_W - center_W))
        rows["center"] = np.where(np.isfinite(size_W), nearer_W, center_W)

    def _rotate_lines(self, move_W: Array, size_W: Array, seconds_W: Array) -> None:
        """Turn each line about its point at the mean recent batch, whose time is known, by one step of RLS."""
        rows, center_W = self.state, self.state["center"]
        line_W, last_W, level_W = (rows["intercept"] + rows["slope"] * x for x in (size_W, rows["last"], center_W))
        # On the floor a time says nothing about the slope, so only moves on the rising part of the curve count.
        lowest_W = np.minimum(np.minimum(line_W, last_W), level_W)
        turned_W = (move_W != 0) & (lowest_W > 0) & (lowest_W >= rows["floor"])
        move_W = np.where(turned_W, move_W, 0.0)
        # old moves fade, as no more than 10 is kept
        rows["information"] = np.minimum(rows["information"] + np.square(move_W), 10.0)
        missed_W = (self._time_ratio(size_W, seconds_W) - 1.0) * line_W / np.maximum(size_W, rows["last"])
        slope_W = np.maximum(rows["slope"] + missed_W * move_W / rows["information"], 0.0)
        # A steeper slope than proportional would make the intercept negative.
        slope_W = np.minimum(slope_W, np.maximum(level_W / center_W, rows["slope"]))
        rows["intercept"] = np.where(turned_W, level_W - slope_W * center_W, rows["intercept"])
        rows["slope"] = np.where(turned_W, slope_W, rows["slope"])

    def _time_ratio(self, size_W: Array, seconds_W: Array) -> Array:
        """Return this batch's time over its curve, divided by the same ratio of the last batch; within bounds."""
        rows = self.state
        now_W = seconds_W / _curve_seconds(rows, size_W)
        ratio_W = now_W * _curve_seconds(rows, rows["last"]) / rows["last_seconds"]
        # a forecast time wrong by more than a factor of 2 counts as wrong by 2
        return np.minimum(np.maximum(ratio_W, 0.5), 2.0)

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        rows = self.state
        relative_W = self._relative.predict(covariates=covariates_WD, horizon=horizon).speed
        # the last batch; without one, the median of the others, or a size its curve was fitted at
        size_W, known_W = rows["last"], np.isfinite(rows["last"])
        if not known_W.all():
            size_W = np.where(known_W, size_W, np.median(size_W[known_W]) if known_W.any() else rows["size"])
        level_W = _curve_seconds(rows, size_W)
        # extrapolate with at least half the batch's rise: from a flat stretch, one worker would get all samples
        slope_W = np.fmax(rows["slope"], 0.5 * level_W / rows["last"])  # a fitted curve holds until it is tried
        intercept_W = np.where(slope_W > rows["slope"], level_W - slope_W * size_W, rows["intercept"])
        # the largest batch that worked below one that failed, but at least half of the failed one
        learned_W = np.maximum(rows["worked"], np.floor(rows["failed"] / 2.0))
        return Forecast(
            speed=np.clip(size_W * relative_W / level_W, MIN_SPEED, MAX_SPEED),
            spread=self._spread(rows["last"], horizon),
            batch_time=Curves(
                floor=rows["floor"] / relative_W,
                slope=slope_W / relative_W,
                intercept=intercept_W / relative_W,
                limit=np.minimum(np.maximum(rows["most"], rows["worked"]), learned_W),
            ),
        )

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        size_W = self.state["last"]
        return size_W * self._relative.forecast_speed(covariates_WD, horizon) / _curve_seconds(self.state, size_W)

    def forecast_speed_at(self, samples_W: Array, covariates_WD: Array) -> Array:
        size_W = np.where(samples_W > 0, samples_W, np.nan)
        return size_W * self._relative.forecast_speed(covariates_WD, 1) / _curve_seconds(self.state, size_W)


def _curve_seconds(worker_states: Mapping[str, Array], size: Array) -> Array:
    return np.maximum(worker_states["floor"], worker_states["intercept"] + worker_states["slope"] * size)
