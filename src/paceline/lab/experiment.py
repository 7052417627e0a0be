"""Setting of a live experiment: the schemes it compares, and how one rank is disturbed meanwhile."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from paceline._arrays import Array
from paceline._require import require
from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.processes import quota_placement, start_until_exit
from paceline.predictors import Curves, named
from paceline.solver import split

EQUAL = "equal"
"""Plain DistributedDataParallel with equal batches: what every scheme is compared with."""
CONTROL = "control"
"""Equal batches with measuring and forecasting: shows the overhead of balancing."""

DISTURBED_RANK = 1
"""The rank that is disturbed."""

GLOBAL_BATCH = 896
"""Samples of all ranks in an iteration."""


@dataclass(frozen=True, kw_only=True)
class ExperimentSetting:
    """One live experiment; ``ValueError`` if there is no such thing, or a number is not above 0."""

    contention: str = "quota"  # a key of DISTURBANCES
    schemes: tuple[str, ...] = ("auto",)  # predictors by name, such as "ewma:smoothing=0.5", or "control"
    rounds: int = 4  # turns of every scheme, each between two turns of equal batches
    seconds: float = 3.0  # of a turn

    def __post_init__(self) -> None:
        if self.contention not in DISTURBANCES:
            raise ValueError(f"contention must be one of {list(DISTURBANCES)}, got {self.contention!r}")
        for scheme in self.schemes:
            if scheme != CONTROL:
                named(scheme)
        for name in ("rounds", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Turns in order: the scheme that trains, and the seed of the bursts, the same for all turns of a round."""
        order: list[tuple[str, int]] = []
        for seed in range(self.rounds):
            order.append((EQUAL, seed))
            # Every other round runs backwards, so that the order favors no scheme.
            for scheme in self.schemes[:: -1 if seed % 2 else 1]:
                order += [(scheme, seed), (EQUAL, seed)]
        return order


class TurnResult(NamedTuple):
    """One turn of a scheme."""

    scheme: str
    seed: int  # of the bursts
    first_iteration: int  # counted over all turns of the scheme
    seconds: list[float]  # wall time of each iteration
    machine_cpu_seconds: float  # of all processes during the turn
    rank_cpu_seconds: float  # of this rank


@dataclass(frozen=True)
class IterationResult:
    """What the outcome is computed from in a record of a balanced iteration; times are in seconds."""

    index: int
    sizes: list[int]
    seconds: list[float]
    overhead: float


@dataclass(frozen=True)
class RankResult:
    """Results of one rank."""

    turns: list[TurnResult]  # in their order
    losses: dict[str, list[float]]  # of each scheme and iteration: the mean over the rank's samples times their share
    records: dict[str, list[IterationResult]]  # of the balanced schemes' iterations


@dataclass(frozen=True)
class SchemeResult:
    """Results of one scheme."""

    scheme: str
    speed_up: float  # over equal batches, geometric mean over pairs of turns
    half_width: float  # of its 95% confidence interval
    waiting_share: float  # of the ranks' time, up to the slowest's end
    oracle: float  # speed-up that the solver reaches on the same iterations when it knows their speeds
    share_of_oracle: float  # time of the oracle over that of the scheme
    overhead: float  # median seconds that balancing adds to an iteration on the critical path
    changes: float  # of sizes in 100 iterations
    loss_gap: float  # largest difference to the loss of equal batches after as many samples, relative to the first loss


@dataclass(frozen=True)
class ExperimentOutcome:
    """Outcome of an experiment: its setting, and the results of each rank."""

    setting: ExperimentSetting
    results: list[RankResult]

    @property
    def turns(self) -> list[TurnResult]:
        """The turns as measured by the first rank."""
        return self.results[0].turns

    def paired_speed_ups(self, scheme: str) -> Array:
        """Return the speed-up over equal batches in each turn of a scheme, against the two turns beside it."""
        counted = [turn.seconds[first_counted_iteration(turn.seconds) :] for turn in self.turns]
        rates = [len(seconds) / sum(seconds) for seconds in counted]
        here = [index for index, turn in enumerate(self.turns) if turn.scheme == scheme]
        return np.array([rates[index] / ((rates[index - 1] + rates[index + 1]) / 2) for index in here])

    def losses(self, scheme: str) -> Array:
        """Return the mean loss over the samples of every iteration, ``[K]``."""
        return np.asarray(np.sum([result.losses[scheme] for result in self.results], axis=0))

    @property
    def rows(self) -> list[SchemeResult]:
        """Results of every scheme, in the order of the setting."""
        return list(map(self.row, self.setting.schemes))

    def row(self, scheme: str) -> SchemeResult:
        """Return the results of one scheme."""
        logs = np.log(self.paired_speed_ups(scheme))
        speed_up = float(np.exp(logs.mean()))
        walls_K, sizes_KW, busy_KW = self.measurements(scheme)
        fixed_W = np.zeros(busy_KW.shape[1])  # the part of each rank's busy time that no split moves
        fixed_W[DISTURBED_RANK] = DISTURBANCES[self.setting.contention].between_seconds
        slope_KW = np.maximum(busy_KW - fixed_W, 1e-6) / sizes_KW
        total = int(sizes_KW[0].sum())
        rest_K = np.maximum(walls_K - busy_KW.max(axis=1), 0.0)
        equal = (fixed_W + total / sizes_KW.shape[1] * slope_KW).max(axis=1) + rest_K
        floor_W, limit_W = np.zeros_like(fixed_W), np.full_like(fixed_W, np.inf)
        known = [Curves(floor_W, slope_W, fixed_W, limit_W) for slope_W in slope_KW]
        best = np.array([split(curves, total, lower=1).makespan for curves in known]) + rest_K
        records = self.results[0].records[scheme]
        # A record stands for all iterations since the one before.
        stands_for = np.diff([-1, *(record.index for record in records)])
        ours, theirs = self.losses(scheme), self.losses(EQUAL)
        count = min(len(ours), len(theirs))
        return SchemeResult(
            scheme,
            speed_up,
            confidence_half_width(logs) * speed_up,
            float(1 - (busy_KW / busy_KW.max(axis=1, keepdims=True)).mean()),
            float(equal.sum() / best.sum()),
            float(best.sum() / walls_K.sum()),
            float(np.median(np.repeat([record.overhead for record in records], stands_for))),
            100 * sum(now.sizes != before.sizes for before, now in pairwise(records)) / len(ours),
            float(np.abs(ours[:count] - theirs[:count]).max() / theirs[0]),
        )

    def measurements(self, scheme: str) -> tuple[Array, Array, Array]:
        """Return wall seconds ``[K]``, sizes and busy time ``[K, W]`` of the recorded iterations that count."""
        begun = [(turn.first_iteration, turn.seconds) for turn in self.turns if turn.scheme == scheme]
        walls = {
            first + k: seconds[k]
            for first, seconds in begun
            for k in range(first_counted_iteration(seconds), len(seconds))
        }
        # The times of the last iterations on a device may still be unknown.
        known = [record for record in self.results[0].records[scheme] if np.isfinite(record.seconds).all()]
        chosen = [record for record in known if record.index in walls]
        if not chosen:
            raise RuntimeError(
                f"no iteration of {scheme!r} was reported in turns of {self.setting.seconds:g} s, {len(walls)} "
                "iterations in all: take longer turns, or a machine that is less busy"
            )
        walls_K = np.array([walls[record.index] for record in chosen])
        sizes_KW = np.array([record.sizes for record in chosen], dtype=float)
        return walls_K, sizes_KW, np.array([record.seconds for record in chosen], dtype=float)


def first_counted_iteration(seconds: list[float]) -> int:
    """Return the first iteration of a turn that counts: at least the last one does, however slow the machine."""
    return min(3, len(seconds) - 1)


def confidence_half_width(logs: Array) -> float:
    """Return the half-width of the 95% confidence interval of the mean."""
    from scipy.stats import t

    if len(logs) < 2:
        return float("nan")
    return float(t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))


def can_set_quotas() -> bool:
    """Return whether this machine lets us limit the CPU of a process."""
    with quota_placement(1.0) as place:
        return place is not None


def experiment(setting: ExperimentSetting, *, progress: Callable[[float], object] = float) -> ExperimentOutcome:
    """Train for real on this machine, with equal batches and with every scheme, in turns.

    ``progress`` is called regularly with the completed share, 0 to 1. ``RuntimeError`` if this machine has too few
    cores or allows no CPU quota, or if a rank fails; the message then ends with its traceback.
    """
    for library in ("torch", "sklearn"):
        require(library, needed_by="a live experiment", extra="lab")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError(f"a live experiment needs 2 cores, one for each rank; this process may use {len(cores)}")
    disturbance = DISTURBANCES[setting.contention]
    from torch.multiprocessing.spawn import ProcessException

    from paceline.lab.experiment_worker import compete, run_rank

    with TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        np.zeros(1, dtype=np.int64).tofile(folder / "finish")
        place = None if disturbance.quota is None else stack.enter_context(quota_placement(1.0))
        if disturbance.quota is not None and place is None:
            raise RuntimeError(
                f"the contention {setting.contention!r} needs writable control groups, which this machine does "
                "not have: use 'hogs' or 'bursty-hogs'"
            )
        hogs = start_until_exit(stack, compete, [cores[DISTURBED_RANK]], disturbance.num_hogs)
        ranks = start_until_exit(stack, run_rank, [cores, folder, setting, place, hogs.pids()], 2)
        begin, seconds = time.monotonic(), len(setting.turns) * setting.seconds
        try:
            while not ranks.join(timeout=0.1):
                progress(min((time.monotonic() - begin) / seconds, 1.0))
        except ProcessException as error:
            raise RuntimeError(f"rank {error.error_index} of the experiment failed: {error}") from error
        progress(1.0)
        return ExperimentOutcome(setting, [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(2)])
