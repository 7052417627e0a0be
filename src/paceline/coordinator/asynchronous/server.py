"""The parameter server: versions, staleness, and what its scheme makes of them. No threads, files or clock.

Axes: P parameters, W workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler
from paceline.coordinator.asynchronous.finite import miscounted
from paceline.coordinator.asynchronous.foresight.lookahead import Lookahead
from paceline.coordinator.asynchronous.foresight.staleness import Calibration, StalenessReport, staleness_reports
from paceline.coordinator.asynchronous.ledger import Ledger, Outcome
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.rules.gates import Open
from paceline.coordinator.asynchronous.schemes import Scheme
from paceline.coordinator.asynchronous.store import LocalStore, Store, part
from paceline.coordinator.asynchronous.updates import Updates
from paceline.coordinator.asynchronous.verdict import Pulled, Verdict
from paceline.coordinator.asynchronous.workers import Member, Stamp, Workers, WorkerStep
from paceline.predictors import Predictor

TICKETS_OF_A_LIFE = 2**40
"""More steps than a server starts between two checkpoints."""


class Server:
    """Holds the parameters; hands them out with samples, and applies what comes back by the rules of a scheme.

    Parameters
    ----------
    parameters
        Initial parameters, ``[P]``, float32 or float64.
    optimizer
        What updates are applied with.
    scheme
        Rules for pulls and pushes.
    sampler
        Assigns the samples.
    batch
        Samples of a full batch of one worker.
    workers
        Names of the first workers; more may :meth:`join`.
    predictor
        Forecasts the workers' speeds, so that staleness is known before the push; from now on the server's own.
        ``None`` takes all workers for equally fast.
    copy
        ``False`` works in the array given, for optimizers that hold it too.
    store
        What holds the parameters instead of this process, such as :class:`ShardedStore`; ``parameters`` and
        ``optimizer`` are not read then.
    least
        The fewest samples of a step: 2 for a model that normalises over batches.

    Attributes
    ----------
    fleet
        The workers, and the version.
    ledger
        What became of every step.
    calibration
        Forecast staleness beside the actual one.

    Raises
    ------
    ValueError
        If the parameters are no row of finite floats, or the batch or all samples are fewer than a step's fewest.

    Notes
    -----
    Not safe for threads: an engine calls it from one, or under a lock.

    Examples
    --------
    Two workers pull the first version; the second push is one version stale, and DynSGD counts it half:

    >>> from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
    >>> server = Server(
    ...     np.array([1.0]), SGD(0.1), scheme("dyn-sgd", 2), EpochSampler(100), batch=10, workers=["a", "b"]
    ... )
    >>> a, b = server.pull("a"), server.pull("b")
    >>> server.push("a", a.stamp, np.array([1.0])).outcome
    <Outcome.APPLIED: 'applied'>
    >>> print(server.push("b", b.stamp, np.array([1.0])).why)
    b was 1 version stale: its 10 samples count 0.5 times
    >>> server.parameters
    array([0.85])
    """

    def __init__(
        self,
        parameters: Vector,
        optimizer: Optimizer,
        scheme: Scheme,
        sampler: EpochSampler,
        *,
        batch: int,
        workers: Sequence[str] = (),
        predictor: Predictor | None = None,
        copy: bool = True,
        store: Store | None = None,
        least: int = 1,
    ) -> None:
        if not 1 <= least <= min(batch, sampler.samples):
            raise ValueError(
                f"batch must be at least {max(least, 1)}, and so many samples must there be, as a step takes no fewer; "
                f"got least={least}, batch={batch} and {sampler.samples} samples"
            )
        self.store: Store = store or LocalStore(parameters, optimizer, scheme.compensation, copy=copy)
        self.scheme = scheme
        self.sampler = sampler
        self.batch = batch
        self.least = least
        self.fleet = Workers()
        self.ledger = Ledger()
        self.calibration = Calibration()
        self._ahead = Lookahead(self.fleet, scheme.sizing, batch, predictor, least)
        linear = optimizer.is_linear
        self._updates = Updates(scheme, self.fleet, sampler, self.ledger, self.store, batch, linear)
        self._tickets = 0
        for worker in workers:
            self.join(worker)

    # -- workers -------------------------------------------------------------------------------------------------

    def join(self, worker: str) -> None:
        """Let a worker take part; one that comes back after it died starts afresh."""
        if worker in self.fleet.members:
            self.abandon(worker)
            return
        # Under SSP a newcomer at clock 0 would stop everybody until it had caught up.
        clock = self.fleet.slowest.clock if len(self.fleet) else 0
        self.fleet.members[worker] = Member(worker, clock=clock)
        self._ahead.join(worker)

    def leave(self, worker: str) -> tuple[str, ...]:
        """Let a worker go: the samples that it held go back. Return whose steps an update due now gave up."""
        self._updates.close(self._member(worker), Outcome.ABANDONED)
        del self.fleet.members[worker]
        self._ahead.leave(worker)
        return self._updates.settle()

    # -- pull and push -------------------------------------------------------------------------------------------

    def pull(self, worker: str) -> Pulled | None:
        """Start a step; ``None`` where the worker has to wait, or no samples are left: ask again after any push.

        A worker that pulls twice has lost its first step: that is given up, and its samples go back.

        Raises
        ------
        ValueError
            If the worker has not joined.
        """
        member = self._member(worker)
        self._updates.close(member, Outcome.ABANDONED)
        if self.sampler.empty or not self.scheme.gate.may_start(member, self.fleet):
            return None
        stamp = Stamp(self.version, self._tickets)
        self._tickets += 1
        drawn = self.sampler.draw(self._ahead.size(worker), self.least)
        member.step = WorkerStep(stamp, drawn, self._ahead.expected(worker), self.fleet.pushes)
        member.worked_on = self.version
        return Pulled(stamp, self.store.lend(worker, stamp.ticket), member.step.drawn)

    def push(
        self,
        worker: str,
        stamp: Stamp,
        gradient: Vector,
        samples: int | None = None,
        *,
        seconds: float = math.nan,
        comm_seconds: float = 0.0,
        now: float = 0.0,
    ) -> Verdict:
        """Take a worker's gradient and return the verdict. A bad push is refused, with the reason in a sentence.

        Parameters
        ----------
        worker
            Who pushes.
        stamp
            What its pull was stamped with.
        gradient
            The mean over the samples, ``[P]``; read before this returns and not kept.
        samples
            How many of the samples assigned it is the mean of, the first ones; the others go back. All by default.
        seconds
            The worker's own computing time; NaN if it is not known.
        comm_seconds
            What the step took besides, pull and push, in seconds.
        now
            When the push came, on any clock; only DSSP reads it.
        """
        member = self.fleet.members.get(worker)
        if member is None or member.step is None or member.step.stamp != stamp:
            late = member.late(stamp) if member is not None else None
            if late is not None and not miscounted(count := late.count(samples), len(late.drawn)):
                # Its time is learnt all the same: a worker whose steps are given up needs the forecast most.
                self.report(worker, count, seconds, comm_seconds)
            return self._updates.stray(worker, stamp, issued=self._tickets)
        count = member.step.count(samples)
        if wrong := miscounted(count, len(member.step.drawn)) or self.store.flaw(worker, stamp.ticket, gradient):
            return self._updates.waste(member, Outcome.REFUSED, wrong, seconds=seconds)
        staleness = self.fleet.lag(member)
        self._learn(member, staleness, now)
        self._ahead.report(worker, count, seconds, comm_seconds)
        if self.scheme.bound is not None and staleness > self.scheme.bound:
            reason = f"it is {staleness} versions stale, beyond the bound of {self.scheme.bound}"
            return self._updates.waste(member, Outcome.DROPPED, reason, staleness, seconds=seconds)
        return self._updates.take(member, gradient, count, staleness, seconds)

    def abandon(self, worker: str) -> tuple[str, ...]:
        """Give up a worker's step, if it is at one: its samples go back. Return whose steps were given up with it."""
        self._updates.close(self._member(worker), Outcome.ABANDONED)
        return self._updates.settle()

    def report(self, worker: str, samples: int, seconds: float, comm_seconds: float = 0.0) -> None:
        """Learn how long a worker took for samples of a step that it gave up half-way; a push reports by itself."""
        self.ledger.took(worker, Outcome.ABANDONED, seconds)
        self._ahead.report(worker, samples, seconds, comm_seconds)

    def is_given_up(self, worker: str, stamp: Stamp) -> bool:
        """Return whether a step was given up, so that computing on is a waste: ask between micro-batches."""
        member = self.fleet.members.get(worker)
        return member is None or member.step is None or member.step.stamp != stamp

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        return self.store.parameters

    @property
    def version(self) -> int:
        """Number of updates applied so far."""
        return self.fleet.version

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that take part, in the order of every array."""
        return tuple(self.fleet.members)

    @property
    def gathered(self) -> int:
        """Pushes that wait for others, to be applied with them."""
        return len(self._updates.gathered)

    @property
    def finished(self) -> bool:
        """True if every sample of every epoch has been applied."""
        return self.sampler.finished

    @property
    def staleness(self) -> Array:
        """Each worker's smoothed staleness, ``[W]``, in versions; NaN before its first push."""
        return np.array([member.staleness for member in self.fleet])

    @property
    def expected_staleness(self) -> Array:
        """The staleness forecast for each worker's next push, ``[W]``, in versions; NaN without a predictor."""
        return self._ahead.staleness.copy()

    @property
    def sizes(self) -> Sizes:
        """Samples of each worker's next step, ``[W]``."""
        return self._ahead.sizes.copy()

    def staleness_reports(self) -> list[StalenessReport]:
        """Return every worker's staleness, seen and forecast, and whether it is a straggler."""
        return staleness_reports(self.workers, self.sizes, self.batch, self.staleness, self.expected_staleness)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return parameters, version, optimizer and sampler, as arrays; steps under way count as given up.

        Workers join again after a restart, and forecasts are learnt anew within a few rounds.
        """
        sampler = {f"sampler/{name}": value for name, value in self.sampler.state_dict(self._updates.held).items()}
        return {**self.store.state_dict(), **sampler, "place": np.array([self.version, self._tickets])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; steps under way are lost.

        Raises
        ------
        ValueError
            If it is no such state, or that of other parameters, another optimizer or another sampler. Nothing is
            changed then.
        """
        sampler = part(state, "sampler")
        wanted = {"parameters", "place", *(f"sampler/{name}" for name in self.sampler.state_dict())}
        if missing := sorted(wanted - set(state)):
            raise ValueError(f"the state lacks {missing}: it is not that of an asynchronous server")
        self.sampler.require_fit(sampler)  # before anything is changed
        self.store.load_state_dict(state)
        self.sampler.load_state_dict(sampler)
        version, tickets = (int(value) for value in state["place"])
        self._updates.restart(version)
        # Beyond all tickets that were handed out after the state was taken: none of those is to fit a step to come.
        self._tickets = tickets + TICKETS_OF_A_LIFE

    # -- inside --------------------------------------------------------------------------------------------------

    def _learn(self, member: Member, staleness: int, now: float) -> None:
        """Learn the time and the staleness of a valid push."""
        assert member.step is not None
        expected = member.step.expected
        # The forecast counts pushes of workers that do not wait; it does not hold where workers wait or pushes are
        # gathered.
        if math.isfinite(expected) and isinstance(self.scheme.gate, Open) and not self.scheme.gathering.mean:
            self.calibration.note(expected, staleness)
        member.note(staleness, now)
        self.fleet.pushes += 1
        self.scheme.gate.pushed(member, self.fleet)

    def _member(self, worker: str) -> Member:
        if worker not in self.fleet.members:
            raise ValueError(f"worker must be one of {list(self.workers)}, got {worker!r}: let it join first")
        return self.fleet.members[worker]
