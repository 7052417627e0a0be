"""Health of a trace: gaps, repeats, outliers, clocks, covariates, and whether there is anything to predict.

Axes: T iterations, W workers, D covariates, H lags, R runs of rows with equal covariates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._wording import count
from paceline.datasets.trace import Trace

LAGS = 10
"""Number of lags in the test against white noise."""

SIGNIFICANT = 0.01
"""A worker's series counts as predictable if its p-value as white noise is below this."""

FEWEST = 20
"""Series with fewer values are not judged."""


HALF_WINDOW = 5
"""The running median covers a value and this many on either side."""


MAX_NAMED = 5
"""Workers that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Statistics of one series of every worker, the speed or one covariate; medians over the workers.

    Shares lie in [0, 1]; NaN where too little is known.

    Parameters
    ----------
    name
        ``"speed"``, or the covariate's name.
    missing, longest_gap
        Share of missing values of all workers; the longest run of iterations in which one worker is missing.
    constant
        Number of workers whose values never change.
    repeated, outliers
        Share of values equal to the one before; share of values far from their running median.
    variation, lag_one
        Coefficient of variation; correlation with the value before.
    predictable
        Share of workers whose series is not white noise (Ljung-Box test of ten lags).
    with_speed
        For a covariate: correlation with the log speed of the iteration that begins then.
    """

    name: str
    missing: float
    longest_gap: int
    constant: int
    repeated: float
    outliers: float
    variation: float
    lag_one: float
    predictable: float
    with_speed: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a trace, as :func:`health` finds it; ``str`` of it is a report to read.

    Parameters
    ----------
    job, iterations, workers
        The trace.
    series
        The speed, if any was measured, and every covariate.
    clock_backwards, clock_gaps
        How often a worker's ``start`` goes backwards, and how often it jumps; ``None`` where the trace has no clock.
    concerns
        What to know before learning from the trace, one sentence each.
    """

    job: str
    iterations: int
    workers: int
    series: tuple[Series, ...]
    clock_backwards: int | None
    clock_gaps: int | None
    dropped: str
    concerns: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``None`` for unknown numbers."""
        about = asdict(self)
        about["series"] = [{name: _plain(value) for name, value in asdict(one).items()} for one in self.series]
        return about

    def __str__(self) -> str:
        lines = [
            f"{self.job}: {self.iterations} iterations of {self.workers} workers; dropped in reading: {self.dropped}"
        ]
        clock = (
            "no clock"
            if self.clock_gaps is None
            else f"clock: {count(self.clock_gaps, 'gap')}, {self.clock_backwards} backwards"
        )
        lines += [clock, *(f"- {concern}" for concern in self.concerns or ("nothing of concern",))]
        return "\n".join(lines)


def health(trace: Trace) -> Health:
    """Check a trace before learning from it.

    Examples
    --------
    A speed that is white noise, and a covariate that never moves:

    >>> rng = np.random.default_rng(0)
    >>> noise = Trace(
    ...     samples=np.ones((500, 2)),
    ...     seconds=rng.uniform(0.9, 1.1, (500, 2)),
    ...     covariates=np.full((500, 2, 1), 4.0),
    ...     covariate_names=["cores"],
    ... )
    >>> print(health(noise))
    trace: 500 iterations of 2 workers; dropped in reading: nothing
    no clock
    - nothing to predict in speed beyond each worker's usual value: it looks like white noise in all workers
    - covariate cores is constant in all workers
    """
    speed_TW = trace.speed
    measured = bool(np.isfinite(speed_TW).any())
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a worker without values has no mean
        series = [_series("speed", speed_TW)] if measured else []
        for d, name in enumerate(trace.covariate_names):
            assert trace.covariates is not None
            covariate_TW = trace.covariates[:, :, d]
            with_speed = _correlation(covariate_TW, np.log(speed_TW)) if measured else float("nan")
            series.append(_series(name, covariate_TW, with_speed))
        backwards, gaps = (None, None) if trace.start is None else _clock(trace.start)
    found = Health(
        job=trace.name,
        iterations=len(trace),
        workers=len(trace.workers),
        series=tuple(series),
        clock_backwards=backwards,
        clock_gaps=gaps,
        dropped=trace.meta.get("dropped", "nothing"),
    )
    return Health(**{**vars(found), "concerns": tuple(_concerns(found, trace))})


def ljung_box(values_TW: Array, lags: int = LAGS) -> Array:
    """Return the probability that white noise has autocorrelations as large as these, ``[W]``.

    It is NaN for short series, and where no two values are apart by one of the lags, as in a log of every second
    iteration. Missing values are left out of the sums. G. Ljung and G. Box, "On a measure of lack of fit in time series
    models", Biometrika 65, 1978.

    >>> rng = np.random.default_rng(0)
    >>> ljung_box(np.stack([rng.normal(size=400), np.cumsum(rng.normal(size=400))], axis=1)).round(2)
    array([0.61, 0.  ])
    """
    from scipy.stats import chi2

    count_W = np.isfinite(values_TW).sum(axis=0)
    lag_H = np.arange(1, lags + 1)
    correlation_HW = autocorrelations(values_TW, lags)
    with np.errstate(all="ignore"):  # a short series has no statistic
        statistic_W = count_W * (count_W + 2) * (correlation_HW**2 / (count_W - lag_H[:, None])).sum(axis=0)
    return np.where(count_W >= max(FEWEST, 2 * lags), chi2.sf(statistic_W, lags), np.nan)


def _series(name: str, values_TW: Array, with_speed: float = float("nan")) -> Series:
    there_TW = np.isfinite(values_TW)
    enough_W = there_TW.sum(axis=0) >= FEWEST
    spread_W = np.nanmax(values_TW, axis=0) - np.nanmin(values_TW, axis=0)
    noise_W = ljung_box(values_TW)
    tested_W = np.isfinite(noise_W) & (spread_W > 0)
    equal_TW = (values_TW[1:] == values_TW[:-1]) & there_TW[1:]
    return Series(
        name=name,
        missing=float(1.0 - there_TW.mean()),
        longest_gap=_longest_gap(there_TW),
        constant=int((spread_W == 0).sum()),
        repeated=_median(equal_TW.sum(axis=0) / (there_TW[1:] & there_TW[:-1]).sum(axis=0), enough_W),
        outliers=float(_outliers(np.log(values_TW) if name == "speed" else values_TW).sum() / max(there_TW.sum(), 1)),
        variation=_median(np.nanstd(values_TW, axis=0) / np.abs(np.nanmean(values_TW, axis=0)), enough_W),
        lag_one=_median(_autocorrelation(values_TW, 1), enough_W & (spread_W > 0)),
        predictable=float((noise_W[tested_W] < SIGNIFICANT).mean()) if tested_W.any() else float("nan"),
        with_speed=with_speed,
    )


def autocorrelations(values_TW: Array, lags: int = LAGS) -> Array:
    """Return each worker's correlation with itself one lag ago and more, ``[H, W]``.

    It is NaN for a constant series, and where no two values are that far apart.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.stack([_autocorrelation(values_TW, lag) for lag in range(1, lags + 1)])


def _autocorrelation(values_TW: Array, lag: int) -> Array:
    centred_TW = values_TW - np.nanmean(values_TW, axis=0)
    products_TW = centred_TW[lag:] * centred_TW[:-lag]
    seen_W = np.isfinite(products_TW).any(axis=0)  # the sum of no products is 0, which would look like noise
    return np.where(seen_W, np.nansum(products_TW, axis=0) / np.nansum(centred_TW**2, axis=0), np.nan)


def _correlation(covariate_TW: Array, log_speed_TW: Array) -> float:
    """Return the median over workers of the correlation of a covariate with log speed."""
    both_TW = np.isfinite(covariate_TW) & np.isfinite(log_speed_TW)
    x_TW, y_TW = np.where(both_TW, covariate_TW, np.nan), np.where(both_TW, log_speed_TW, np.nan)
    x_TW, y_TW = x_TW - np.nanmean(x_TW, axis=0), y_TW - np.nanmean(y_TW, axis=0)
    scale_W = np.sqrt(np.nansum(x_TW**2, axis=0) * np.nansum(y_TW**2, axis=0))
    return _median(np.nansum(x_TW * y_TW, axis=0) / scale_W, both_TW.sum(axis=0) >= FEWEST)


def _outliers(values_TW: Array) -> NDArray[np.bool_]:
    """Return which values are far from the median of their neighbours."""
    if len(values_TW) < 2 * HALF_WINDOW + 1:
        return np.zeros(values_TW.shape, dtype=bool)
    width = 2 * HALF_WINDOW + 1
    padded = np.pad(values_TW, ((HALF_WINDOW, HALF_WINDOW), (0, 0)), mode="edge")
    far_TW = np.empty(values_TW.shape)
    for w in range(values_TW.shape[1]):  # a worker at a time: the windows are eleven times the series
        windows = np.lib.stride_tricks.sliding_window_view(padded[:, w], width)
        far_TW[:, w] = np.abs(values_TW[:, w] - np.nanmedian(windows, axis=-1))
    scale_W = 1.4826 * np.nanmedian(far_TW, axis=0)
    # an outlier is more than 6 robust standard deviations from the running median
    return np.asarray((far_TW > 6.0 * scale_W) & (scale_W > 0))


def _longest_gap(there_TW: NDArray[np.bool_]) -> int:
    longest_W = run_W = np.zeros(there_TW.shape[1], dtype=np.int64)
    for there_W in there_TW:
        run_W = np.where(there_W, 0, run_W + 1)
        longest_W = np.maximum(longest_W, run_W)
    return int(longest_W.max())


def _clock(start_TW: Array) -> tuple[int, int]:
    """Return how often the clock of a worker goes backwards, and how often it jumps over many intervals."""
    backwards = gaps = 0
    for start_T in start_TW.T:
        interval = np.diff(start_T[np.isfinite(start_T)])
        backwards += int((interval < 0).sum())
        if (interval > 0).any():
            # a gap is longer than 10 median intervals
            gaps += int((interval > 10.0 * np.median(interval[interval > 0])).sum())
    return backwards, gaps


def _median(values_W: Array, enough_W: NDArray[np.bool_]) -> float:
    known = values_W[enough_W & np.isfinite(values_W)]
    return float(np.median(known)) if len(known) else float("nan")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _concerns(found: Health, trace: Trace) -> Iterator[str]:
    if "derived" in trace.meta:
        yield f"speeds are derived, not measured: {trace.meta['derived']}"
    if not any(one.name == "speed" for one in found.series):
        yield f"no speed was measured: {_why_no_speed(trace)}"
    elif not _have_neighbours(trace.speed):
        yield (
            "no worker reported two consecutive iterations, so whether its speed is noise cannot be said; if only "
            "every N-th iteration was logged, number the logged ones 0, 1, 2, ..."
        )
    if "absent" in trace.meta:
        yield f"no worker reported {trace.meta['absent']}"
    if "restarts" in trace.meta:
        yield f"the job, or what recorded it, was started again {trace.meta['restarts']} times"
    if "resumed totals" in found.dropped:
        yield f"counters were resumed: {found.dropped}"
    if found.clock_backwards:
        yield f"the clock goes backwards {found.clock_backwards} times"
    if found.clock_gaps:
        yield f"the clock jumps over 10 or more usual intervals {found.clock_gaps} times"
    if still := frozen(trace):
        yield f"{frozen_sentence(still)}, and change otherwise: what measured them may have stopped"
    for one in found.series:
        yield from _about_series(one, "speed" if one.name == "speed" else f"covariate {one.name}", found.workers)


def _why_no_speed(trace: Trace) -> str:
    if trace.covariate_names and np.isnan(trace.samples).all() and np.isnan(trace.seconds).all():
        return "the trace only has usage"
    for name, panel_TW in (("samples", trace.samples), ("seconds", trace.seconds)):
        if not (panel_TW > 0).any():
            return f"all its {name} are {'missing' if np.isnan(panel_TW).all() else 'missing or 0'}"
    return "no worker reported samples and seconds of the same iteration"


def _have_neighbours(speed_TW: Array) -> bool:
    known_TW = np.isfinite(speed_TW)
    return len(known_TW) == 1 or bool((known_TW[1:] & known_TW[:-1]).any())


def _about_series(one: Series, name: str, workers: int) -> Iterator[str]:
    if one.missing == 1.0:
        yield f"{name} has no value"
        return
    if one.constant:
        yield f"{name} is constant in {_of(one.constant, workers)}"
    if one.missing > 0.05:
        yield f"{name} is missing in {one.missing:.0%} of all entries; the longest gap is {one.longest_gap} iterations"
    if one.constant == workers:
        return
    if one.repeated > 0.2 and one.name == "speed":
        yield f"{name} equals the previous value in {one.repeated:.0%}: this flatters the last-value predictor"
    if one.outliers > 0.01:
        yield f"{name} has {one.outliers:.1%} outliers"
    if one.predictable < 0.5 and one.name == "speed":
        noisy = round((1.0 - one.predictable) * workers)
        # This concerns prediction only: `eval.simulate` shows what steady differences between workers are worth.
        yield (
            f"nothing to predict in {name} beyond each worker's usual value: it looks like white noise in "
            f"{_of(noisy, workers)}"
        )


def _of(count: int, workers: int) -> str:
    return "all workers" if count == workers else f"{count} of {workers} workers"


def frozen(trace: Trace) -> dict[str, int]:
    """Return for how many iterations all covariates of a worker stand still; other workers are left out.

    A single covariate that rests, such as used memory, is nothing unusual while others move. A worker whose covariates
    never change has no frozen stretch.

    Examples
    --------
    A load that is measured for 50 iterations, and stays at its last value for 30 more:

    >>> load_T = np.append(np.sin(np.arange(50)), np.full(30, np.sin(49)))
    >>> ones = np.ones((80, 1))
    >>> frozen(Trace(ones, ones, workers=["a"], covariates=load_T[:, None, None], covariate_names=["load"]))
    {'a': 31}
    """
    if trace.covariates is None or len(trace) <= 20:
        return {}
    rows_W = _frozen_rows(trace.covariates)
    return {name: int(rows) for name, rows in zip(trace.workers, rows_W, strict=True) if rows}


def frozen_sentence(rows: dict[str, int]) -> str:
    """Return the counts of :func:`frozen` in words.

    >>> frozen_sentence({"a": 31, "b": 20})
    'all covariates stand still for 31 iterations of a, 20 iterations of b'
    """
    named = [f"{count} iterations of {name}" for name, count in rows.items()]
    more = [f"and others of {len(named) - MAX_NAMED} more workers"] if len(named) > MAX_NAMED else []
    return "all covariates stand still for " + ", ".join([*named[:MAX_NAMED], *more])


def _frozen_rows(covariates_TWD: Array) -> Sizes:
    iterations, workers, _ = covariates_TWD.shape
    known_TWD = np.isfinite(covariates_TWD)
    equal_TWD = (covariates_TWD[1:] == covariates_TWD[:-1]) | ~(known_TWD[1:] | known_TWD[:-1])
    new_TW = np.ones((iterations, workers), dtype=bool)
    new_TW[1:] = ~equal_TWD.all(axis=2)
    start_R = np.flatnonzero(new_TW.T)  # the workers' rows end to end
    length_R = np.diff(start_R, append=iterations * workers)
    known_run_R = known_TWD.any(axis=2).T.ravel()[start_R]
    worker_R, length_R = start_R[known_run_R] // iterations, length_R[known_run_R]
    runs_W = np.bincount(worker_R, minlength=workers)
    longest_W = np.zeros(workers, dtype=np.int64)
    np.maximum.at(longest_W, worker_R, length_R)
    others_W = np.bincount(worker_R, weights=length_R, minlength=workers) - longest_W
    minimum_W = np.maximum(20, 10.0 * others_W / np.maximum(runs_W - 1, 1))
    frozen_R = (length_R >= minimum_W[worker_R]) & (runs_W[worker_R] > 1)
    return np.bincount(worker_R[frozen_R], weights=length_R[frozen_R], minlength=workers).astype(np.int64)
