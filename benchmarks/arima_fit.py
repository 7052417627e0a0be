"""Measure how long ARIMA takes to fit and to serve, and how good the fits are, against statsmodels.

Run as ``python benchmarks/arima_fit.py``; it writes arima_fit.md beside this file. statsforecast takes part when it
is installed. Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# One thread for everybody: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from statsmodels.tsa.arima import model as statsmodels_arima

from paceline.predictors import ARIMA, Report
from paceline.predictors.arima.arima import Order
from paceline.predictors.arima.estimate import Coefficients, fit_css, fit_css_groups, fit_likelihood

Array = NDArray[np.float64]
Fitter = Callable[[Array, Array, Order], Coefficients | None]

SERIES = 12
CASES: tuple[tuple[Order, bool], ...] = (
    ((2, 0, 1), False),
    ((2, 0, 1), True),
    ((0, 1, 1), False),
    ((2, 1, 1), False),
    ((2, 1, 1), True),
)


def series(order: Order, driven: bool, iterations: int, seed: int) -> tuple[Array, Array]:
    """Return one log speed of this kind and its covariates: two if it is driven, and a constant if it needs one."""
    rng = np.random.default_rng(seed)
    ar = [0.5, 0.2][: order[0]]
    ma = [0.3 if order[1] == 0 else -0.6]
    error_T = lfilter([1.0, *ma], [1.0, *(-np.array(ar))], rng.normal(0.0, 0.05, iterations))
    for _ in range(order[1]):
        error_T = np.cumsum(error_T)
    covariates_TD = rng.random((iterations, 2 if driven else 0))
    value_T = 5.0 + error_T + covariates_TD @ np.array([-0.5, 0.1][: covariates_TD.shape[1]])
    constant_TD = np.ones((iterations, 0 if order[1] else 1))
    return value_T, np.concatenate([covariates_TD, constant_TD], axis=1)


# -- the fits ----------------------------------------------------------------------------------------------------


def css(value_T: Array, covariates_TD: Array, order: Order) -> Coefficients:
    return fit_css(value_T[:, None], covariates_TD[:, None], order)[0]


def statsforecast(value_T: Array, covariates_TD: Array, order: Order) -> None:
    """Fit by statsforecast, for the time alone: it makes its own constant."""
    from statsforecast.models import ARIMA as TheirARIMA  # noqa: N811 - ours has the name

    varying = covariates_TD[:, : covariates_TD.shape[1] - (order[1] == 0)]
    model = TheirARIMA(order=order, include_constant=order[1] == 0)
    model.fit(value_T, X=varying if varying.shape[1] else None)


def fitters() -> dict[str, Fitter]:
    ours_and_theirs: dict[str, Fitter] = {"ours, css": css, "statsmodels": fit_likelihood}
    return ours_and_theirs | ({"statsforecast": statsforecast} if find_spec("statsforecast") else {})


def one_ahead_error(fit: Coefficients, value_T: Array, covariates_TD: Array, order: Order) -> float:
    """Return the root mean squared error one ahead over the second half, by statsmodels' own filter."""
    exog = covariates_TD if covariates_TD.shape[1] else None
    model = statsmodels_arima.ARIMA(value_T, exog=exog, order=order, trend="n")
    forecast_T = model.filter([*fit.vector, 1.0]).fittedvalues
    half = len(value_T) // 2
    return float(np.sqrt(np.mean(np.square(forecast_T - value_T)[half:])))


def compared(order: Order, driven: bool, iterations: int) -> tuple[dict[str, list[float]], float, float]:
    """Fit the first half of every series by all in turn; return their seconds, and the mean and worst error ratio."""
    seconds: dict[str, list[float]] = {name: [] for name in fitters()}
    ratios = []
    for seed in range(SERIES):
        value_T, covariates_TD = series(order, driven, 2 * iterations, seed)
        fits = {}
        for name, fitter in fitters().items():
            start = time.perf_counter()
            fits[name] = fitter(value_T[:iterations], covariates_TD[:iterations], order)
            seconds[name].append(time.perf_counter() - start)
        ours, theirs = (
            one_ahead_error(fit, value_T, covariates_TD, order)
            for fit in (fits["ours, css"], fits["statsmodels"])
            if fit is not None
        )
        ratios.append(ours / theirs)
    return seconds, float(np.exp(np.mean(np.log(ratios)))), max(ratios)


def fleet_sentence() -> str:
    """Return the time per series to fit a whole fleet at once, and how it compares."""
    workers, iterations, order = 100, 1000, (2, 0, 1)
    made = [series(order, driven=False, iterations=2 * iterations, seed=seed) for seed in range(workers)]
    value_TW, ones_TWD = np.stack([value_T for value_T, _ in made], axis=1), np.stack([d for _, d in made], axis=1)
    past_TW, past_TWD = value_TW[:iterations], ones_TWD[:iterations]
    ours, theirs = [], {name: [] for name in fitters() if name != "ours, css"}
    for turn in range(5):
        start = time.perf_counter()
        fits, _ = fit_css_groups(past_TW, past_TWD, order, np.arange(workers))
        ours.append((time.perf_counter() - start) / workers)
        for name, times in theirs.items():
            start = time.perf_counter()
            fitters()[name](past_TW[:, turn], past_TWD[:, turn], order)
            times.append(time.perf_counter() - start)
    mine = statistics.median(ours)
    errors = [
        [one_ahead_error(fit, value_TW[:, w], ones_TWD[:, w], order) for w, fit in found]
        for found in (
            enumerate(fits[:SERIES]),
            [(w, fit_likelihood(past_TW[:, w], past_TWD[:, w], order)) for w in range(SERIES)],
        )
    ]
    ratio = float(np.exp(np.mean(np.log(np.divide(*errors)))))
    others = [
        f"{name} {1e3 * (s := statistics.median(times)):.1f} ms ({s / mine:.0f}x)" for name, times in theirs.items()
    ]
    return (
        f"A fleet of {workers} series of {iterations:,} points, {order}, at once: {1e3 * mine:.2f} ms a series;\n"
        f"{', '.join(others)}. Error ratio over {SERIES} of them {ratio:.5f}.\n"
    )


# -- serving -----------------------------------------------------------------------------------------------------


def step_microseconds(order: Order, workers: int) -> float:
    """Return the time per worker of one observe and one predict, median of several."""
    model = ARIMA(order)
    model.order_ = order
    model.coefficients_ = {"": Coefficients(np.zeros(0), np.full(order[0], 0.2), np.full(order[2], -0.4))}
    model.reset([str(w) for w in range(workers)])
    report = Report(np.ones(workers), np.random.default_rng(0).uniform(1.0, 2.0, workers))
    times = []
    for _ in range(60):
        start = time.perf_counter()
        model.observe(report)
        model.predict()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times) / workers


# -- the report --------------------------------------------------------------------------------------------------


def machine() -> str:
    cpu_file = Path("/proc/cpuinfo")
    lines = cpu_file.read_text().splitlines() if cpu_file.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = [
        f"{name} {found}" for name in ("numpy", "scipy", "statsmodels", "statsforecast") if (found := _version(name))
    ]
    return (
        f"{model}, {os.cpu_count()} cores, one thread used; Python {platform.python_version()}, {', '.join(versions)}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def fit_table() -> Iterator[str]:
    names = list(fitters())
    yield "| order | covariates | points | " + " | ".join(names) + " | error ratio, mean / worst |"
    yield "| --- |" + " --- |" * (len(names) + 3)
    for order, driven in CASES:
        for iterations in (500, 1000):
            seconds, mean, worst = compared(order, driven, iterations)
            ours = statistics.median(seconds["ours, css"])
            middle = {name: statistics.median(times) for name, times in seconds.items()}
            cells = [f"{1e3 * t:.2f} ms" + (f" ({t / ours:.0f}x)" if t is not ours else "") for t in middle.values()]
            yield f"| {order} | {2 * driven} | {iterations} | {' | '.join(cells)} | {mean:.5f} / {worst:.5f} |"


def report() -> Iterator[str]:
    yield "# How fast ARIMA fits and serves, and how good the fits are\n"
    yield "Command: `python benchmarks/arima_fit.py`\n"
    yield f"Machine: {machine()}; other work ran on it.\n"
    yield "## Fitting\n"
    yield (
        f"Median seconds per series over {SERIES} synthetic series, all fitting the same one in turn; in brackets, how"
    )
    yield "many times slower than ours. The error ratio is our RMSE over statsmodels', one step ahead over as"
    yield "many points after the fitted ones, both served by statsmodels' filter.\n"
    yield from fit_table()
    yield "\n" + fleet_sentence()
    yield "\n## Serving\n"
    yield "Microseconds per worker of one `observe` and one `predict`, with the full Kalman filter, median of 60.\n"
    yield "| order | 1 worker | 100 workers | 1,000 workers |"
    yield "| --- | --- | --- | --- |"
    for order in ((0, 1, 1), (2, 1, 1), (2, 1, 2)):
        yield f"| {order} | " + " | ".join(f"{step_microseconds(order, w):.2f}" for w in (1, 100, 1000)) + " |"


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers, about their starts
        text = "\n".join(report()) + "\n"
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
