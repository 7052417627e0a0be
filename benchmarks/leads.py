"""Significance of leads, on data whose truth is known: how often equal predictors lead, and how soon a lead is found.

python benchmarks/leads.py    # about 8 CPU minutes; writes leads.md
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from machine import machine
from scipy.stats import norm

from paceline._arrays import Array
from paceline.datasets import Trace
from paceline.eval import Lead, compare, leaderboard
from paceline.eval.residuals import Residuals, residuals
from paceline.eval.significance import LEVEL, critical_difference
from paceline.predictors import EWMA, LastValue

PAIRS, BOARDS = 1000, 80
"""Pairs of predictors of each row, and leaderboards."""

LENGTHS = (150, 500, 1500)

LEAD = 0.97
"""Ratio of the errors of a predictor that is better."""

KINDS = {
    "independent": "independent",
    "0.5": "half of the one before stays",
    "0.8": "0.8 of the one before stays",
    "bursts": "large in the same stretches",
}
"""Errors whose leads are counted."""

BEYOND = {"own bursts": "large in stretches of its own"}
"""Errors of which a job holds a few stretches alone."""

POWER = 0.8
"""A lead is found at a length if so many tests find it."""


def errors(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> tuple[Array, Array]:
    """Return the errors of two equal predictors of one kind: see :data:`KINDS`."""
    before = (shape[0] + 50, shape[1])
    first_TW, second_TW = (rng.standard_t(5, size=before) for _ in range(2))
    if kind in ("bursts", "own bursts"):
        sizes = [np.exp(0.7 * np.sqrt(1 - 0.95**2) * _followed(rng.normal(size=before), 0.95)) for _ in range(2)]
        first_TW = first_TW * sizes[0]
        second_TW = second_TW * sizes[kind == "own bursts"]
    elif kind != "independent":
        first_TW, second_TW = (_followed(drawn_TW, float(kind)) for drawn_TW in (first_TW, second_TW))
    return first_TW[50:], second_TW[50:]


def _followed(drawn_TW: Array, likeness: float) -> Array:
    for k in range(1, len(drawn_TW)):
        drawn_TW[k] += likeness * drawn_TW[k - 1]
    return drawn_TW


# -- equal predictors ------------------------------------------------------------------------------------------------


def false_leads(kind: str, iterations: int, workers: int) -> list[float]:
    """Return shares of pairs of equal predictors with a lead: ours, its test, its interval, and Newey and West's."""
    found = []
    for seed in range(PAIRS):
        rng = np.random.default_rng([seed, iterations, workers])
        first, second = errors(rng, (iterations, workers), kind)
        lead = compare(first, second)
        outside = not lead.low <= 1 <= lead.high
        found.append((lead.is_significant, lead.p < LEVEL, outside, newey_west(first, second) < LEVEL))
    return [float(share) for share in np.mean(found, axis=0)]


def newey_west(first_TW: Array, second_TW: Array) -> float:
    """Return the chance by statsmodels' HAC errors with the usual lags and normal quantiles."""
    from statsmodels.regression.linear_model import OLS

    difference_T = (first_TW**2 - second_TW**2).mean(axis=1)
    lags = int(4 * (len(difference_T) / 100) ** (2 / 9))
    fitted = OLS(difference_T, np.ones_like(difference_T)).fit(cov_type="HAC", cov_kwds={"maxlags": lags})
    return float(2 * norm.sf(abs(fitted.tvalues[0])))


class Perturbed(LastValue):
    """The last value with noise of its own: those of any two seeds are equally good."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forecast_speed(self, covariates_WD: Array | None, horizon: int) -> Array:
        speed_W = super().forecast_speed(covariates_WD, horizon)
        known_W = np.nan_to_num(speed_W)
        return speed_W * (1 + 0.02 * np.sin(known_W * 1e4 * (1 + self.seed)))  # noise that asking twice repeats


def fleet(seed: int, iterations: int, workers: int, q: float = 0.1) -> Trace:
    """Return a job whose log speeds are levels that wander, with noise: the ratio of the variances is ``q``."""
    rng = np.random.default_rng([seed, 7])
    level_TW = np.cumsum(0.03 * np.sqrt(q) * rng.normal(size=(iterations, workers)), axis=0)
    speed_TW = 100 * (1 + level_TW + 0.03 * rng.normal(size=(iterations, workers)))
    return Trace(np.full(speed_TW.shape, 64.0), 64.0 / np.maximum(speed_TW, 1.0), meta={"job": f"job {seed}"})


def boards(predictors: int) -> float:
    """Return how often a leaderboard of equal predictors calls any of them worse than the best."""
    models = {f"model {k}": Perturbed(k) for k in range(predictors)}
    told = 0
    for seed in range(BOARDS):
        board = leaderboard(models, [fleet(seed, 400, 4)])
        names = [name for name in board.overall["predictor"] if name in models]
        told += any(board.lead(name, names[0], among=predictors).verdict == "worse" for name in names[1:])
    return told / BOARDS


def false_ranks(predictors: int, jobs: int, rounds: int = 4000) -> float:
    """Return how often mean ranks of equal predictors differ by more than the critical difference."""
    rng = np.random.default_rng(0)
    ranks = rng.random((rounds, jobs, predictors)).argsort(axis=2).argsort(axis=2).mean(axis=1)
    return float((np.ptp(ranks, axis=1) > critical_difference(predictors, jobs)).mean())


# -- a lead that is there --------------------------------------------------------------------------------------------


def smoothings(q: float = 0.1) -> tuple[float, float]:
    """Return the best smoothing of levels that wander, and one whose error is larger by exactly the lead.

    The mean squared error of smoothing a is (2 + q / a) / (2 - a), in units of the noise's variance.
    """
    grid = np.linspace(0.01, 1.0, 100_000)
    squared = (2 + q / grid) / (2 - grid)
    best = int(squared.argmin())
    other = best + int(np.abs(squared[best:] * LEAD**2 - squared[best]).argmin())
    return float(grid[best]), float(grid[other])


def power(iterations: int, workers: int, pairs: int = 150) -> tuple[float, float]:
    """Return how often the better smoothing is found, and how often the interval holds the true ratio."""
    best, other = smoothings()
    leads: list[Lead] = []
    for seed in range(pairs):
        board = leaderboard(
            {"best": EWMA(smoothing=best), "other": EWMA(smoothing=other)}, [fleet(seed, iterations + 50, workers)]
        )
        leads.append(board.lead("best", "other"))
    found = np.mean([lead.verdict == "better" for lead in leads])
    return float(found), float(np.mean([lead.low <= LEAD <= lead.high for lead in leads]))


# -- calibration -----------------------------------------------------------------------------------------------------


def miscalled(iterations: int, workers: int) -> tuple[float, float]:
    """Return how often calibrated forecasts are called something else, and white errors predictable."""
    called, predictable = [], []
    for seed in range(PAIRS):
        rng = np.random.default_rng(seed)
        left = residuals(rng.normal(size=(iterations, workers)), rng.random((iterations, workers)))
        said = Residuals.joined({"job": left}, {"job": workers})
        called.append(said["intervals"] != "right")
        predictable.append(said["predictable"])
    return float(np.mean(called)), float(np.mean(predictable))


# -- the page --------------------------------------------------------------------------------------------------------


def table(heading: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([heading, "|" + " --- |" * (heading.count("|") - 1), *lines])


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %"


def rows_of_equal(kinds: dict[str, str]) -> list[list[str]]:
    """Return the rows of equal predictors."""
    rows = []
    for kind, words in kinds.items():
        for iterations in LENGTHS:
            for workers in (1, 4):
                shares = false_leads(kind, iterations, workers)
                rows.append([words, str(iterations), str(workers), *map(percent, shares)])
                print(*rows[-1], flush=True)
    return rows


def rows_of_leads() -> list[list[str]]:
    """Return the rows of a lead that is there."""
    rows = []
    for workers in (1, 4):
        for iterations in (250, 500, 1000):
            found, held = power(iterations, workers)
            rows.append([str(iterations), str(workers), percent(found), percent(held)])
            print(*rows[-1], flush=True)
    return rows


def stated(rows: list[list[str]], workers: int) -> str:
    """Return the length from which the lead is found."""
    enough = [row[0] for row in rows if row[1] == str(workers) and float(row[2].split()[0]) >= 100 * POWER]
    return enough[0] if enough else "more than the longest here"


HEADING = "| errors | iterations | workers | false leads | test alone | interval alone | Newey-West |"


def page() -> str:
    """Measure, and return the page."""
    equal, beyond, leads = rows_of_equal(KINDS), rows_of_equal(BEYOND), rows_of_leads()
    most, mean = (f"{function([float(row[3].split()[0]) for row in equal]):.1f}" for function in (max, np.mean))
    several = [[str(k), percent(boards(k))] for k in (2, 5, 10)]
    ranks = [[str(k), str(jobs), percent(false_ranks(k, jobs))] for k in (3, 10) for jobs in (10, 30)]
    calibration = [[str(n), str(w), *map(percent, miscalled(n, w))] for n in LENGTHS for w in (1, 4)]
    one, four = (stated(leads, workers) for workers in (1, 4))
    return f"""# Significance of a lead

Command: `python benchmarks/leads.py`

Machine: {machine("scipy", "statsmodels")}

`paceline evaluate` calls a difference *better* or *worse* if two tests at 5 % say so: Diebold and Mariano's, with a
standard error from the lowest frequencies (fixed smoothing), and the interval of the block bootstrap. Otherwise it says
*not significant*. Here the truth is known.

- Equal predictors: {mean} % false leads in the mean of {len(equal)} settings, {most} % in the worst.
- A true lead of {100 * (1 - LEAD):.0f} % is found in {POWER:.0%} of jobs from {one} scored iterations of one worker, or
  {four} of four.

## Equal predictors

Two predictors whose errors have the same distribution, {PAIRS} pairs a row. Errors have heavy tails (Student's t of
five degrees of freedom) and are independent, or a part of the one before stays, or they are large for both predictors
in the same stretches, as in bursts. *Newey-West* is what `statsmodels` gives with its HAC errors, the usual number of
lags and normal quantiles: where errors resemble their neighbours it calls chance a lead too often, so it is not used.

{table(HEADING, equal)}

Harder: each predictor has stretches of large errors of its own, of some 20 iterations, at other times than the other. A
short job holds few of them, and chance looks like a lead more often. Compare such predictors over several jobs.

{table(HEADING, beyond)}

Leaderboards of equal predictors (the last value, each with a noise of its own), {BOARDS} jobs of 4 workers and 350
scored iterations: how often *any* of them is called worse than the best.

{table("| predictors | boards with a false lead |", several)}

Mean ranks of equal predictors: how often any two differ by more than the critical difference.

{table("| predictors | jobs | false differences |", ranks)}

## A lead of {100 * (1 - LEAD):.0f} %

Speeds whose level wanders, with noise: the error of exponential smoothing is known exactly, so two smoothings are
chosen of which one has {LEAD:.2f} times the error of the other. Both go through `leaderboard`, 150 jobs a row. The last
column says how often the 95 % interval holds the true ratio.

{table("| scored iterations | workers | found | interval holds |", leads)}

## Calibration

Forecasts whose distributions are right: how often another word is said of their intervals, and the share of workers
whose white errors are called predictable (at 1 %).

{table("| iterations | workers | not called right | called predictable |", calibration)}
"""


def main() -> None:
    """Write the page."""
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
