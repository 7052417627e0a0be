"""From the reports of all ranks to the next plan, the same on every rank. Axes: W workers, D covariates."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.work import WorkModel
from paceline.predictors import Report
from paceline.torch.exchange import Exchange
from paceline.torch.rank_loader import RankLoader
from paceline.torch.reports import RankReports, mean_reports, merge_ranks, scale_to_shares
from paceline.torch.state_lists import from_lists, to_lists

logger = logging.getLogger(__name__)


class Planning:
    """Learns from reports and plans: a load balancer with what a running job of ranks needs around it.

    Attributes
    ----------
    workers
        The names of the ranks, in their order. Ranks of one name are one worker, and get as many samples as each other.
    checksum
        Number by which ranks see that they use the same plan, and the same costs.
    work
        What samples cost, learned or given; None where they have no costs.
    order, in_order
        The first rank of each of the plan's workers, ``[W]``; and whether these are all ranks in their own order.
    """

    def __init__(
        self, balancer: LoadBalancer, loader: RankLoader, exchange: Exchange, workers: Sequence[str], covariates: int
    ) -> None:
        self.balancer = balancer
        self.features = 0 if loader.coefficients is None else len(loader.coefficients)
        self.work = WorkModel(self.features) if self.features else None
        self._loader = loader
        self._exchange = exchange
        self.workers = tuple(workers)
        self._covariates_before = np.full((len(balancer.workers), covariates), np.nan)
        self._unplanned: list[RankReports] = []
        # the fastest of 8 plans says how long planning takes; until then every iteration is planned
        self._recent_seconds: deque[float] = deque(maxlen=8)
        self.seconds = 0.0  # that planning takes this rank, once it is known
        self._has_settled = self._had_settled = False  # at this exchange, and at the one before
        self._steady_plans = 0  # plans since more than a few samples moved, the same on every rank
        self._typical_seconds = math.nan  # of the slowest rank, an iteration
        self._is_slow = False  # whether the last iteration took far longer
        self._last_W: Sizes | None = None  # what the loader was given last, and what it made of it
        self._shares_W: Sizes | None = None
        self._map_ranks_to_workers()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learned and decided."""
        work = {} if self.work is None else {"work": to_lists(self.work.state_dict())}
        return {"balancer": to_lists(self.balancer.state_dict()), **work}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Resume; what was learned of a worker follows its name."""
        if self.work is not None and "work" in state:
            self.work.load_state_dict(from_lists(state["work"]))
        self.balancer.load_state_dict(from_lists(state["balancer"]))
        for worker in self.workers:
            if worker not in self.balancer.workers:
                self.balancer.join(worker)
        for worker in self.balancer.workers:
            if worker not in self.workers:
                self.balancer.leave(worker)
        self._covariates_before = np.full_like(self._covariates_before, np.nan)
        self._unplanned.clear()
        self._map_ranks_to_workers()

    def reports_by_worker(self, report_WF: Array) -> Array:
        """Return the reports of ranks as those of the plan's workers; of a worker's ranks, the slowest one's.

        If a rank has looped differently from the others of its worker, its report is the worker's.
        """
        if self.in_order:
            return report_WF
        if len(self.order) == len(self.workers):
            return np.array(report_WF[self.order])
        ranks_of = [np.flatnonzero(self._rank_order == worker) for worker in range(len(self.order))]
        return np.stack([merge_ranks(report_WF[ranks]) for ranks in ranks_of])

    def require_same_position(self, reports: RankReports) -> None:
        """Raise an error if ranks have looped differently: samples are lost and repeated, and no plan can mend that."""
        places = reports.positions(with_checksum=reports.has_same_plan)  # other plans assign other batches
        if not (places == places[0]).all():
            raise RuntimeError(desync_error(self.balancer.workers, places))

    def adopt_first_rank_state(self, reports: RankReports, iteration: int) -> None:
        """Copy the first rank's state to all ranks, because their plans differ."""
        self.require_same_position(reports)
        self._has_settled = True
        if not self._had_settled:  # while it lasts, batches are those of the first rank: there is nothing new to say
            logger.warning(
                "The ranks computed different sizes for iteration %d, so all ranks use rank 0's sizes until they agree "
                "again. A few samples of that iteration may have been used twice or skipped; later iterations are not "
                "affected. Run all ranks on the same hardware and library versions.",
                iteration,
            )
        self.balancer.load_state_dict(self._exchange.broadcast_from_first(self.balancer.state_dict()))
        if self.work is not None:
            self.work.load_state_dict(self._exchange.broadcast_from_first(self.work.state_dict()))
            self._loader.coefficients = self.work.coefficients
        self._unplanned.clear()
        self._map_ranks_to_workers()

    def learn(self, reports: RankReports) -> None:
        """Learn from the reports of an iteration and plan the next, or keep the reports until planning is due."""
        at_once = reports.ran_out
        if self.work is not None:
            reports, new_costs = self._learn_costs(reports, self.work)
            at_once = at_once or new_costs
        if at_once or self._is_due(reports):
            iterations = len(self._unplanned) + 1
            reports = reports if at_once else mean_reports([*self._unplanned, reports])
            self._unplanned.clear()
            self._replan(reports, iterations)
        else:
            self._unplanned.append(reports)

    def _is_due(self, reports: RankReports) -> bool:
        """Note how long an iteration took, and return whether to plan now: the same on every rank."""
        seconds = (reports["seconds"] / reports["steps"]).tolist()  # NaN, or of the slowest rank
        iteration = max((one for one in seconds if one == one), default=math.inf)
        usual = self._typical_seconds if self._typical_seconds == self._typical_seconds else iteration
        self._typical_seconds = usual + 0.1 * (iteration - usual) if iteration < math.inf else math.nan
        # Planning takes at most 1% of this process's time, or 4% where sizes change or a worker has become slow. At
        # most 32 iterations are planned at once.
        affordable = min(float(reports["planning_seconds"].max()) / (0.01 * iteration), 32)
        waiting = len(self._unplanned) + 1
        was_slow, self._is_slow = self._is_slow, iteration > 1.5 * usual
        if self._is_slow and was_slow and waiting >= 0.25 * affordable:  # one alone is an outlier
            del self._unplanned[:-1]  # reports from before it became slow would hide it
            return True
        return waiting >= min(affordable, max(0.25 * affordable, 2.0 ** (self._steady_plans // 4)))

    def _replan(self, reports: RankReports, iterations: int) -> None:
        self._had_settled, self._has_settled = self._has_settled, False
        began = time.thread_time()
        if self._covariates_before.size:
            before_WD, self._covariates_before = self._covariates_before, reports.covariates_WD
            self.balancer.step(reports.report(before_WD), self._covariates_before, iterations=iterations)
        else:
            self.balancer.step(reports.report(None), iterations=iterations)
        before_W = self._sizes_W
        self._read_plan()
        # a few samples back and forth are noise
        moved = np.abs(self._sizes_W - before_W).sum() > 0.1 * before_W.sum()
        self._steady_plans = 0 if moved else self._steady_plans + 1
        self._recent_seconds.append(time.thread_time() - began)
        if len(self._recent_seconds) == 8:
            self.seconds = min(self._recent_seconds)

    def _learn_costs(self, reports: RankReports, work: WorkModel) -> tuple[RankReports, bool]:
        """Learn what samples cost; return the reports with work in place of samples, and whether costs are new."""
        work_W, parts_W = work.work(reports.features_WF), reports["micro_batches"]
        planned = reports.scale_to_shares(work_W, self.plan.sizes.astype(np.float64), work.fixed_seconds)
        if work.observe(reports.features_WF / parts_W[:, None], reports["seconds"] / parts_W):
            self._loader.coefficients = work.coefficients
            if relative_change(work.work(reports.features_WF), work_W) > 0.02:
                return self._rescale_to_new_costs(reports, work), True
            self._read_plan()  # the same sizes, and a checksum of the new costs
        return planned, False

    def _rescale_to_new_costs(self, reports: RankReports, work: WorkModel) -> RankReports:
        """Report the last iterations to the predictor in units of the new costs; return the newest report in them.

        Speeds in the old units would look like a worker that has become slower: the one whose samples now cost more.
        """
        shares_W, fixed = self.plan.sizes.astype(np.float64), work.fixed_seconds
        if not self._covariates_before.size:  # covariates of past iterations are not kept
            self.balancer.forget()
            # most predictors remember fewer than 16 iterations
            for features_WF1 in work.recent_observations(16)[:-1]:
                work_W, seconds_W = work.work(features_WF1[:, :-1]), features_WF1[:, -1]
                self.balancer.observe(Report(shares_W, scale_to_shares(seconds_W, work_W, shares_W, fixed)))
        return reports.scale_to_shares(work.work(reports.features_WF), shares_W, fixed)

    def apply_to_loader(self) -> None:
        """Set the shares of the latest plan on the loader, which checks them, unless they are set already."""
        if self._sizes_W is not self._last_W or self._loader.shares is not self._shares_W:
            self._loader.shares = self._sizes_W if self.in_order else self._sizes_W[self._rank_order]
            self._last_W, self._shares_W = self._sizes_W, self._loader.shares

    def _read_plan(self) -> None:
        self.plan = plan = self.balancer.plan
        self._sizes_W = plan.sizes
        # Ranks that planned as often, and reached the same sizes, have the same one; 32 bits fit into a float64.
        self.checksum = zlib.crc32(self._sizes_W.tobytes(), plan.iteration)
        if self.work is not None:  # ranks that learned other costs divide other batches
            self.checksum ^= zlib.crc32(self.work.coefficients.tobytes())

    def _map_ranks_to_workers(self) -> None:
        """Find the ranks in the balancer's order of workers, and the workers in the order of ranks."""
        workers = list(self.balancer.workers)
        self.order = np.array([self.workers.index(worker) for worker in workers])
        self._rank_order = np.array([workers.index(worker) for worker in self.workers])
        self.in_order = self._rank_order.tolist() == list(range(len(workers)))
        self._last_W = None
        self._steady_plans, self._typical_seconds, self._is_slow = 0, math.nan, False
        self._read_plan()
        self.apply_to_loader()


def relative_change(first_W: Array, second_W: Array) -> float:
    """Return how far the logarithms of two works have moved apart between workers; 0 where none is known.

    >>> relative_change(np.array([2.0, 1.1]), np.array([1.0, 0.5])).__round__(3)
    0.095
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        change_W = np.log(first_W / second_W)
    known = change_W[np.isfinite(change_W)]
    return float(np.ptp(known)) if len(known) else 0.0


def desync_error(workers: Sequence[str], positions: Array) -> str:
    """Return the error message for ranks at different epochs and batches, ``[W, 2 or more]``."""
    epoch, batches = positions[0, :2]
    if (positions[:, :2] == positions[0, :2]).all():
        return (
            f"the ranks had different samples by batch {batches:.0f} of epoch {epoch:.0f}. Possible causes: a sampler= "
            "that orders them differently on each rank (seed its generator alike, and leave out a DistributedSampler, "
            "which yields one rank's part), a stream that is divided among the ranks (leave out split_dataset_by_node) "
            "or augments at random (pass key= to StreamLoader), or a loop that differs"
        )
    pairs = zip(workers, positions, strict=True)
    places = ", ".join(f"{worker} is at batch {place[1]:.0f} of epoch {place[0]:.0f}" for worker, place in pairs)
    return (
        f"the ranks are not at the same place in the data: {places}. "
        "Every rank must loop over the loader in the same way. Taking a batch on one rank only removes it from the "
        "epoch: to look at a sample, use loader.dataset[0]"
    )
