"""Worth of balancing a recorded job: with a fixed split, with forecasts, with hindsight.

Axes: T iterations, W workers. The simplifications are those of :mod:`paceline.eval.replay.synchronous`: speeds do not
depend on the batch size, and communication is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._printable import printable
from paceline.datasets import Trace
from paceline.datasets.health import SIGNIFICANT, ljung_box
from paceline.eval.replay.synchronous import EQUAL, ORACLE, Replay, replay
from paceline.eval.replay.synchronous_schemes import Balanced, SizeScheme
from paceline.predictors import EWMA, Curves
from paceline.solver import split

FEWEST = 20
"""Jobs with fewer iterations are not judged, like series with fewer values in :mod:`paceline.datasets.health`."""

LONGEST = 1000
"""Number of last iterations that are replayed: a thousand take a few tenths of a second, and are enough."""

WARMUP = 50
"""Iterations before the scored ones, at most a quarter of all, so that averages have a start."""

LITTLE = 1.02
"""A smaller speed-up is less than the cost of balancing and the error of the replay's simplifications."""

UNEVEN = 0.05
"""Recorded batches count as balanced if they deviate from equal ones by more than this share."""

FIXED, ONLINE = "fixed split", "ewma"


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The result of :func:`worth`; ``str`` of it is a text to read. NaN where the trace does not allow an answer.

    Parameters
    ----------
    iterations
        Number of replayed iterations: the last ones in which all workers reported.
    global_batch
        Samples per replayed iteration; 0 if there was none.
    waiting_recorded, waiting_equal
        Mean share of an iteration that workers wait for the slowest: with the recorded sizes, and with equal ones.
    speedup_fixed
        Equal batches' time over that of one split for the whole job, by each worker's median speed.
    speedup_online
        The same for a new split before each iteration, by a plain average of past speeds.
    speedup_oracle
        The same for splits by the speeds of the iteration to come: no sizing is faster.
    sentences
        What this means, one sentence each; or why there is no answer.
    """

    iterations: int = 0
    global_batch: int = 0
    waiting_recorded: float = float("nan")
    waiting_equal: float = float("nan")
    speedup_fixed: float = float("nan")
    speedup_online: float = float("nan")
    speedup_oracle: float = float("nan")
    sentences: tuple[str, ...] = ()

    @property
    def forecasts_add(self) -> float:
        """Upper bound of the factor by which forecasts could make the job faster than the fixed split."""
        return self.speedup_oracle / self.speedup_fixed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``None`` for unknown numbers."""
        about = asdict(self) | {"forecasts_add": self.forecasts_add, "sentences": list(self.sentences)}
        return {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in about.items()}

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def worth(trace: Trace, *, global_batch: int | None = None) -> Worth:
    """Replay a job with equal batches, a fixed split, an average of past speeds and hindsight, and explain the result.

    A trace without an answer (no speeds, one worker, too few iterations, nothing to divide) is not an error: the
    sentences say what is missing.

    Parameters
    ----------
    trace
        The recorded job.
    global_batch
        Samples of an iteration over all workers; ``None`` takes the job's own, the median.

    Examples
    --------
    One worker is always half as fast as the other. There is nothing to predict, but much to gain:

    >>> rng = np.random.default_rng(0)
    >>> seconds = [0.1, 0.2] * rng.uniform(0.99, 1.01, (300, 2))
    >>> print(worth(Trace(samples=np.full((300, 2), 64), seconds=seconds, workers=["gpu0", "gpu1"])))
    Equal batches wait 25 % of the time, mostly for gpu1.
    A fixed split by each worker's usual speed would make iterations 1.49x as fast, without any forecast.
    Forecasts could add next to nothing to that (at most 1.00x); an average of past speeds (ewma) reaches 1.49x in all.
    """
    speed_TW = trace.speed
    complete_T: NDArray[np.bool_] = np.asarray(np.isfinite(speed_TW).all(axis=1))
    if found := obstacle(trace, speed_TW, complete_T):
        return Worth(sentences=(found,))
    batch = round(float(np.median(trace.samples[complete_T].sum(axis=1)))) if global_batch is None else global_batch
    if batch <= len(trace.workers):
        return Worth(sentences=(indivisible(batch, len(trace.workers)),))
    job = Trace(trace.samples[complete_T], trace.seconds[complete_T], workers=trace.workers).select(
        slice(-LONGEST - WARMUP, None)
    )
    schemes: dict[str, SizeScheme] = {FIXED: FixedSplit(np.median(job.speed, axis=0)), ONLINE: Balanced(EWMA())}
    replayed = replay(schemes, job, global_batch=batch, warmup=min(WARMUP, len(job) // 4))
    return _summed_up(replayed, job, batch)


class FixedSplit:
    """One split for the whole job, by speeds known in advance.

    Parameters
    ----------
    speed
        Speed of each worker, ``[W]``, in samples/s.
    """

    covariate_names: tuple[str, ...] = ()

    def __init__(self, speed: Array) -> None:
        self.speed = speed

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        self._sizes = split(Curves.from_speed(self.speed), global_batch, lower=1).sizes

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Return the same sizes every time."""
        return self._sizes

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Learn nothing."""


# -- why there may be no answer -----------------------------------------------------------------------------------


def obstacle(trace: Trace, speed_TW: Array, complete_T: NDArray[np.bool_]) -> str:
    """Return why a trace does not tell what balancing would gain; empty if it does."""
    if not np.isfinite(speed_TW).any():
        return "What balancing would gain is not known: no speed was measured."
    if len(trace.workers) == 1:
        return (
            "There is nothing to balance: the job has one worker. If each rank wrote a file of its own, name their "
            "folder; the files are joined where they are named after ranks, as rank0.csv and rank1.csv."
        )
    if complete_T.sum() >= FEWEST:
        return ""
    told = "What balancing would gain is not known: "
    if len(trace) < FEWEST:
        return f"{told}the trace has {len(trace)} iterations, but {FEWEST} in which all workers reported are needed."
    missing_W = np.isnan(speed_TW).sum(axis=0)
    w = int(np.argmax(missing_W))
    return (
        f"{told}all workers reported a speed in {complete_T.sum()} of {len(trace)} iterations, but {FEWEST} must; "
        f"{_named(trace.workers[w])} is missing in {missing_W[w]}."
    )


def indivisible(batch: int, workers: int) -> str:
    """Return the sentence on a global batch that leaves nothing to divide."""
    return (
        f"There is nothing to divide: a global batch of {batch} is at most one sample for each of the {workers} "
        "workers; give a larger one (--global-batch) to see what balancing would gain with it."
    )


# -- the answer --------------------------------------------------------------------------------------------------


def _summed_up(replayed: Replay, job: Trace, batch: int) -> Worth:
    scored = slice(-len(replayed.iterations[EQUAL]), None)
    table = replayed.table.set_index("scheme")
    speedup, waiting = table["speed-up"], float(table.loc[EQUAL, "waiting"])  # type: ignore[arg-type]
    found = Worth(
        iterations=len(replayed.iterations[EQUAL]),
        global_batch=batch,
        waiting_recorded=_waiting(job.seconds[scored]),
        waiting_equal=waiting,
        speedup_fixed=float(speedup[FIXED]),
        speedup_online=float(speedup[ONLINE]),
        speedup_oracle=float(speedup[ORACLE]),
    )
    sentences = (_on_waiting(found, job.select(scored)), _on_fixed(found), _on_forecasts(found, job))
    return Worth(**{**asdict(found), "sentences": sentences})


def _waiting(seconds_TW: Array) -> float:
    return float(np.mean(1.0 - seconds_TW.mean(axis=1) / seconds_TW.max(axis=1)))


def _on_waiting(found: Worth, job: Trace) -> str:
    shares_W = (job.samples / job.samples.sum(axis=1, keepdims=True)).mean(axis=0) * len(job.workers)
    sentence = f"Equal batches wait {100 * found.waiting_equal:.0f} % of the time"
    slowest = np.bincount(np.argmin(job.speed, axis=1), minlength=len(job.workers))
    if slowest.max() > len(job) / 2 and found.speedup_oracle >= LITTLE:
        sentence += f", mostly for {_named(job.workers[int(slowest.argmax())])}"
    if np.abs(shares_W - 1.0).max() > UNEVEN:
        sentence += f"; with the recorded sizes workers wait {100 * found.waiting_recorded:.0f} %"
    return f"{sentence}."


def _on_fixed(found: Worth) -> str:
    fixed = found.speedup_fixed
    if fixed >= LITTLE:
        return (
            f"A fixed split by each worker's usual speed would make iterations {_times(fixed)} as fast, without any "
            "forecast."
        )
    if fixed > 2.0 - LITTLE:
        return f"A fixed split by each worker's usual speed would gain next to nothing ({_times(fixed)})."
    return f"A fixed split by each worker's usual speed would make iterations slower ({_times(fixed)} as fast)."


def _on_forecasts(found: Worth, job: Trace) -> str:
    if found.speedup_oracle < LITTLE:
        return f"Even speeds known in advance would gain no more than {_times(found.speedup_oracle)}."
    add, reached = _times(found.forecasts_add), f"an average of past speeds ({ONLINE}) reaches"
    reached += f" {_times(found.speedup_online)} in all."
    if found.forecasts_add < LITTLE:
        return f"Forecasts could add next to nothing to that (at most {add}); {reached}"
    noise_W = ljung_box(job.speed)
    if np.mean(noise_W >= SIGNIFICANT) > 0.5:
        return f"Hindsight would add {add} to that, but no forecast can: the speeds look like white noise; {reached}"
    return f"Forecasts could add at most {add} to that; {reached}"


def _named(worker: str) -> str:
    return f"worker {worker}" if worker.isdigit() else printable(worker)


def _times(factor: float) -> str:
    return f"{factor:.2f}x"
