"""The page of compared predictors. Axes: T iterations, W workers, Q levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline._arrays import Array
from paceline.datasets import Trace
from paceline.eval import Leaderboard, iter_backtest
from paceline.eval.leaderboard import BASELINE_NAME
from paceline.predictors import LastValue, Predictor
from paceline.report.drawing import answer, as_text
from paceline.report.page import (
    ChartBand,
    ChartLine,
    Page,
    lines_block,
    name_and_size,
    page,
    section,
    table,
    worker_label,
)

QUANTILE_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Levels at which calibration is checked: the first and the last bound the 90% interval."""


class JobForecasts(NamedTuple):
    """Scored forecasts of one job: quantiles ``[Q, T, W]``, forecasts and actual speeds, ``[T, W]``."""

    trace: Trace
    quantiles: Array
    forecast: Array
    actual: Array


def evaluation_page(
    leaderboard: Leaderboard,
    models: Mapping[str, Predictor],
    traces: Sequence[Trace],
    *,
    warmup: int = 50,
    settings: Sequence[tuple[str, str]] = (),
    command: str = "",
) -> Page:
    """Return the page of compared predictors: verdict, leaderboard, and the best one's forecasts and calibration.

    ``leaderboard`` is what :func:`paceline.eval.leaderboard` returned of these ``models``, by its names, on these
    ``traces``, without their first ``warmup`` iterations. The best model forecasts every job once more. ``settings``
    are names and values of what was chosen beside, and ``command`` makes the page again.
    """
    best = str(leaderboard.overall["predictor"][0])
    model = {BASELINE_NAME: LastValue(), **models}[best]
    jobs = [_job_forecasts(model, trace, warmup) for trace in traces]
    covered = leaderboard.overall.set_index("predictor")["coverage"]
    return page(
        "evaluation",
        f"Predictors on {len(traces)} recorded jobs" if len(traces) > 1 else f"Predictors on {traces[0].name}",
        _verdict(leaderboard, best),
        [
            _leaderboard_section(leaderboard),
            _forecast_section(leaderboard, jobs, best),
            _calibration_section(jobs, float(covered[best]), best),
        ],
        settings=[("warm-up, not scored", f"{warmup} iterations"), *settings],
        data=list(map(name_and_size, traces)),
        command=command,
    )


def _verdict(leaderboard: Leaderboard, best: str) -> list[dict[str, Any]]:
    lead, row = leaderboard.compare(best), leaderboard.overall.set_index("predictor").loc[best]
    worst, overhead, coverage = (float(np.asarray(row[name])) for name in ("worst", "overhead", "coverage"))
    ratio, low, high = (as_text(one, "ratio") for one in (lead.ratio, lead.low, lead.high))
    ahead = f"Its error is {ratio} of the last value's, {low} to {high} with 95% confidence over "
    ahead += f"{int((leaderboard.workers['predictor'] == best).sum()):,} workers: "
    ahead += "significant." if lead.is_significant else "not significant."
    where = f"times the last value's error, for the worker where it does worst: {row['where']}."
    costs = "longer than with known speeds: so much its errors cost a group of 16 workers."
    holds = "of the speeds lay in its 90% intervals."
    advice = "Keep it simple"
    reason = "Nothing here beats the last value significantly; an average (ewma) will do."
    if lead.is_significant and best != BASELINE_NAME:
        advice = "Replay it"
        reason = f"paceline replay {best} says what its forecasts gain as batch sizes."
    return [
        answer("Who forecasts best?", best, ahead),
        answer("Where is it worst?", as_text(worst, "ratio"), where),
        answer("What do its errors cost?", as_text(overhead, "percent"), costs),
        answer("Do its intervals hold?", as_text(coverage, "percent"), holds),
        answer("What next?", advice, reason),
    ]


def _leaderboard_section(leaderboard: Leaderboard) -> dict[str, Any]:
    columns = [("predictor", "text"), ("RMSE, last value = 1", "range"), ("MAE", "ratio"), ("worst worker", "ratio")]
    columns += [("in the 90% interval", "percent"), ("cost of its errors", "percent"), ("a call", "seconds")]
    rows = [
        (
            row["predictor"],
            ((lead := leaderboard.compare(str(row["predictor"]))).low, lead.ratio, lead.high),
            *(row[name] for name in ("mae", "worst", "coverage", "overhead")),
            1e-6 * float(row["microseconds"]),
        )
        for row in leaderboard.overall.to_dict("records")
    ]
    note = "RMSE: geometric mean over workers, with its 95% interval; left of the line is better than the last value."
    if leaderboard.left_out:
        note += f" {len(leaderboard.left_out)} workers are left out, whose speed never changed or was hardly reported."
    wide = leaderboard.per_trace.pivot(index="predictor", columns="trace", values="rmse")
    order = [str(row[0]) for row in rows]
    per = [(name, *wide.loc[name].to_numpy(dtype=np.float64).tolist()) for name in order]
    heads = [("predictor", "text"), *((str(name), "ratio") for name in wide.columns)]
    leads = [
        (row["predictor"], row["p"], row["than last-value"] or "the baseline", row["than the best"])
        for row in leaderboard.leads().to_dict("records")
    ]
    tested = [("predictor", "text"), ("p", "ratio"), ("than the last value", "text"), ("than the best", "text")]
    tables = [
        table("Leaderboard", columns, rows, note=note),
        table("Significance", tested, leads, note="p: chance of such a difference if both were equally good."),
    ]
    if len(wide.columns) > 1:
        tables.append(table("RMSE of each job, last value = 1", heads, per))
    return section("Leaderboard", "Forecasts are one iteration ahead. Times of a call depend on the machine.", *tables)


# -- the best predictor -------------------------------------------------------------------------------------------


def _job_forecasts(model: Predictor, trace: Trace, warmup: int) -> JobForecasts:
    steps = list(iter_backtest(model, trace))[warmup:]
    quantiles = np.stack([[step.forecast.quantile(level) for step in steps] for level in QUANTILE_LEVELS])
    forecast_TW = np.stack([step.forecast.speed for step in steps])
    return JobForecasts(trace, quantiles, forecast_TW, trace.speed[warmup:])


def _forecast_section(leaderboard: Leaderboard, jobs: Sequence[JobForecasts], best: str) -> dict[str, Any]:
    """Return the forecasts of two workers: the one forecast worst, and the one in the middle."""
    rows = leaderboard.workers[leaderboard.workers["predictor"] == best].sort_values("rmse", ascending=False)
    picked = {"worst forecast": 0, "median": len(rows) // 2} if len(rows) > 1 else {"only": 0}
    charts = []
    for which, k in picked.items():
        name, worker, ratio = (rows[key].iloc[k] for key in ("trace", "worker", "rmse"))
        job = next(one for one in jobs if one.trace.name == name)
        ahead = f"the {which} worker, RMSE {as_text(float(ratio), 'ratio')}"
        charts.append(_forecast_chart(job, job.trace.workers.index(str(worker)), ahead))
    about = f"One iteration ahead, by {best}. The band is the 90% interval."
    return section("Forecasts over actual speeds", about, *charts)


def _forecast_chart(job: JobForecasts, worker_index: int, description: str) -> dict[str, Any]:
    last, w = slice(-250, None), worker_index  # more iterations would hide the band
    low, high, actual = job.quantiles[0, last, w], job.quantiles[-1, last, w], job.actual[last, w]
    top = 2.0 * float(np.fmax.reduce([*actual, 0.0]))
    along = np.arange(len(job.trace))[last][-len(actual) :]
    return lines_block(
        f"{job.trace.name}, {worker_label(job.trace.workers[w])}",
        f"This is {description}.",
        along,
        [ChartLine("actual", actual, 5), ChartLine("forecast", job.forecast[last, w], 1)],
        unit="samples/s",
        bands=[ChartBand("90% interval", low, np.minimum(high, top), 1)],
    )


def _calibration_section(jobs: Sequence[JobForecasts], coverage: float, best: str) -> dict[str, Any]:
    known = np.concatenate([np.isfinite(job.actual).ravel() for job in jobs])
    actual = np.concatenate([job.actual.ravel() for job in jobs])[known]
    quantiles = np.concatenate([job.quantiles.reshape(len(QUANTILE_LEVELS), -1) for job in jobs], axis=1)[:, known]
    below: Array = (actual <= quantiles).mean(axis=1)  # how often the actual speed lay below each quantile
    levels = 100 * np.array(QUANTILE_LEVELS)
    chart = lines_block(
        "How often speeds lay below a quantile",
        "A calibrated predictor runs along the gray line.",
        levels,
        [ChartLine("as it should be", levels, -1), ChartLine(best, 100 * below, 0)],
        x_label="quantile, %",
        unit="% of the speeds",
    )
    about = f"{as_text(coverage, 'percent')} of the speeds lay inside the 90% interval."
    return section("Calibration", about, chart)
