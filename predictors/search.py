"""The model-free search of LB-BSP: some samples go from the straggler to the leader, and times are measured again.

Axes: W workers, D covariates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.protocol import Report


class LeaderSearch(FleetPredictor):
    """The search of LB-BSP for accelerators whose time no curve follows, as a forecast that any balancer can use.

    After each window of iterations the straggler hands some samples to the leader, the fastest worker. If sizes
    oscillate, the step is halved and the window doubled; if they keep moving one way, both return towards their first
    values. The forecasts are in proportion to the sizes to try, so that a load balancer plans just these. Plan with
    ``Policy(change_cost=0, risk=0)``: a search must try what may not pay, and has a tolerance of its own.

    Parameters
    ----------
    step
        First step, as a share of the mean batch.
    window
        First number of iterations over which times are averaged.
    tolerance
        Sizes are kept while the leader's mean time is within this share of the straggler's.

    Notes
    -----
    Chen et al., SoCC 2020, describe the moves, the shrinking step and the widening window. The numbers, the tolerance
    and the regrowth are this library's own.

    Examples
    --------
    >>> from paceline.coordinator import LoadBalancer, Policy
    >>> search, policy = LeaderSearch(window=1), Policy(change_cost=0, risk=0, warmup=0)
    >>> balancer = LoadBalancer(search, workers=["gpu0", "gpu1"], global_batch=128, policy=policy)
    >>> balancer.step(Report(samples=[64, 64], seconds=[0.5, 0.9])).sizes
    array([72, 56])
    """

    skipped_checks: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "learns_a_constant",
            "survives_jumps",
            "leaving_leaves_others_alone",
            "silence_is_survived",
            "a_silent_worker_leaves_others_alone",
        ),
        "its forecasts are in proportion to the sizes to try next, which depend on all workers",
    )

    reads_sizes = True

    def __init__(self, step: float = 0.125, window: int = 5, tolerance: float = 0.05) -> None:
        if not (0 < step < 1 and 0 <= tolerance < 1 and window >= 1):
            raise ValueError(
                "step must lie in (0, 1), tolerance in [0, 1) and window be at least 1 iteration, "
                f"got step={step}, tolerance={tolerance}, window={window}"
            )
        super().__init__()
        self.step = step
        self.window = window
        self.tolerance = tolerance

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        unseen = {name: np.full(num_workers, np.nan) for name in ("last", "size", "wanted")}
        return unseen | {name: np.zeros(num_workers) for name in ("total", "reports", "gave", "took")}

    def initial_shared_state(self) -> dict[str, Array]:
        return {"search": np.array([self.step, self.window, 0.0])}

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        rows, seen_W = self.state, np.isfinite(speed_W)
        size_W = np.where(seen_W, np.asarray(report.samples, dtype=np.float64), rows["size"])
        step, window, seen = self.shared_state["search"]
        if not np.array_equal(size_W, rows["size"], equal_nan=True):  # other sizes begin another window
            rows["total"], rows["reports"], seen = np.zeros(len(size_W)), np.zeros(len(size_W)), 0.0
            rows["wanted"] = size_W  # the search goes on from the sizes in use, whoever chose them
        rows["size"], rows["last"] = size_W, np.where(seen_W, speed_W, rows["last"])
        rows["total"] = rows["total"] + np.where(seen_W, size_W / speed_W, 0.0)
        rows["reports"] = rows["reports"] + seen_W
        self.shared_state["search"] = np.array([step, window, seen + 1])
        if seen + 1 >= window:
            self._move_samples()

    def _move_samples(self) -> None:
        """Move a step of samples from the window's straggler to its leader, and begin another window."""
        rows, size_W = self.state, self.state["size"]
        mean_W = np.where(rows["reports"] > 0, rows["total"] / np.maximum(rows["reports"], 1), np.nan)
        rows["total"], rows["reports"] = np.zeros(len(size_W)), np.zeros(len(size_W))
        step, window, _ = self.shared_state["search"]
        rows["wanted"] = size_W.copy()
        if np.isfinite(mean_W).sum() > 1:
            giver, taker = int(np.nanargmax(mean_W)), int(np.nanargmin(mean_W))
            if 1 - mean_W[taker] / mean_W[giver] >= self.tolerance:
                step, window = self._adapt_step(giver, taker, step, window)
                moved = min(step * np.nanmean(size_W), size_W[giver] / 2)
                rows["wanted"][giver] -= moved
                rows["wanted"][taker] += moved
        self.shared_state["search"] = np.array([step, window, 0.0])

    def _adapt_step(self, from_worker: int, to_worker: int, step: float, window: float) -> tuple[float, float]:
        """Return a shorter step and a wider window if sizes oscillate; the reverse if they keep moving one way."""
        gave_W, took_W = self.state["gave"], self.state["took"]
        if took_W[from_worker] or gave_W[to_worker]:
            # a window grows to at most 16 times the first one
            step, window = step / 2, min(2 * window, 16 * self.window)
        elif gave_W[from_worker] or took_W[to_worker]:
            step, window = min(2 * step, self.step), max(window // 2, self.window)
        self.state["gave"], self.state["took"] = np.zeros(len(gave_W)), np.zeros(len(took_W))
        self.state["gave"][from_worker] = self.state["took"][to_worker] = 1.0
        return step, window

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        wanted_W, last_W = self.state["wanted"], self.state["last"]
        known_W = np.isfinite(wanted_W) & np.isfinite(last_W)
        if not known_W.any():
            return last_W
        return np.where(known_W, wanted_W * (last_W[known_W].sum() / wanted_W[known_W].sum()), np.nan)
