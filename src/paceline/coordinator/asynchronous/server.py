"""The parameter server: versions, staleness, and what its scheme makes of them. No threads, files or clock.

Axes: P parameters, W workers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes, substate
from paceline._text import count
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler, SampleBatch
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector, gradient_error
from paceline.coordinator.asynchronous.schemes import Scheme
from paceline.coordinator.asynchronous.store import ParameterStore, Push
from paceline.coordinator.asynchronous.stragglers import SizePlanner, StalenessReport, straggler_threshold
from paceline.coordinator.asynchronous.workers import StepToken, Workers, WorkerState, WorkerStep
from paceline.predictors import Predictor


class Outcome(Enum):
    """Outcome of a step; the values are its wording in a sentence."""

    APPLIED = "applied"
    DAMPED = "applied, damped"
    GATHERED = "gathered, to be applied with others"
    DROPPED = "dropped"
    ABANDONED = "abandoned"
    REFUSED = "refused"


WASTED_OUTCOMES = (Outcome.DROPPED, Outcome.ABANDONED, Outcome.REFUSED)
"""The outcomes whose computing was for nothing; their samples go back into the sampler."""


@dataclass
class WorkerTotals:
    """One worker's steps, by their outcome. A step that was given up counts with all its samples."""

    steps: Counter[Outcome] = field(default_factory=Counter)
    samples: Counter[Outcome] = field(default_factory=Counter)
    seconds: defaultdict[Outcome, float] = field(default_factory=lambda: defaultdict(float))
    largest_staleness: int = 0
    """Of what was applied."""

    @property
    def applied(self) -> int:
        """Samples applied, damped ones included."""
        return self.samples[Outcome.APPLIED] + self.samples[Outcome.DAMPED]

    @property
    def wasted(self) -> int:
        """Samples computed for nothing."""
        return sum(self.samples[outcome] for outcome in WASTED_OUTCOMES)


class Ledger:
    """The accounts of all workers that ever took part.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.record("a", Outcome.APPLIED, samples=90, staleness=2, seconds=6.0)
    >>> ledger.record("b", Outcome.DROPPED, samples=10, staleness=9, seconds=2.0)
    >>> ledger.wasted_share, ledger.wasted_seconds_share, ledger.largest_staleness, ledger.steps(Outcome.DROPPED)
    (0.1, 0.25, 2, 1)
    """

    def __init__(self) -> None:
        self.accounts: defaultdict[str, WorkerTotals] = defaultdict(WorkerTotals)

    def record(
        self, worker: str, outcome: Outcome, *, samples: int, staleness: int = 0, seconds: float = math.nan
    ) -> None:
        """Record a worker's step that has ended."""
        account = self.accounts[worker]
        account.steps[outcome] += 1
        account.samples[outcome] += samples
        if outcome not in WASTED_OUTCOMES:
            account.largest_staleness = max(account.largest_staleness, staleness)
        self.record_seconds(worker, outcome, seconds)

    def record_seconds(self, worker: str, outcome: Outcome, seconds: float) -> None:
        """Record the computing time of a step; an unknown one counts nothing."""
        if 0 < seconds < math.inf:
            self.accounts[worker].seconds[outcome] += seconds

    def steps(self, *outcomes: Outcome) -> int:
        """Return how many steps ended with any of these outcomes."""
        return sum(account.steps[outcome] for account in self.accounts.values() for outcome in outcomes)

    @property
    def wasted_share(self) -> float:
        """Share of the samples computed that was for nothing."""
        accounts = self.accounts.values()
        wasted, applied = sum(one.wasted for one in accounts), sum(one.applied for one in accounts)
        return wasted / (wasted + applied) if wasted else 0.0

    @property
    def wasted_seconds_share(self) -> float:
        """Share of the computing time that was for nothing, of all whose time is known."""
        everything = sum(sum(one.seconds.values()) for one in self.accounts.values())
        wasted = sum(one.seconds.get(outcome, 0.0) for one in self.accounts.values() for outcome in WASTED_OUTCOMES)
        return wasted / everything if wasted else 0.0

    @property
    def largest_staleness(self) -> int:
        """The largest staleness ever applied."""
        return max((account.largest_staleness for account in self.accounts.values()), default=0)


@dataclass(frozen=True, eq=False)
class Pulled:
    """Parameters and samples with which a step starts."""

    stamp: StepToken
    """To be repeated in the push."""
    parameters: Vector
    """A read-only view, ``[P]``, which the next update changes: copy it, or send it, before anybody pushes."""
    assigned: SampleBatch
    """The samples to compute the gradient of."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of the server on one push."""

    worker: str
    outcome: Outcome
    version: int
    """The version of the parameters by now."""
    samples: int = 0
    """How many the push stood for; 0 where it belonged to no step."""
    staleness: int = -1
    """Versions between pull and push; -1 where the push was refused."""
    factor: float = 0.0
    """Factor of the learning rate for this staleness; 0 where nothing was applied."""
    reason: str = ""
    """Why it was dropped or refused."""
    abandoned_workers: tuple[str, ...] = ()
    """Workers whose steps have passed the bound and were given up because of this push."""

    @property
    def why(self) -> str:
        """Sentence that gives the outcome and its reason.

        >>> Verdict(worker="g1", outcome=Outcome.DAMPED, version=9, samples=8, staleness=4, factor=0.2).why
        'g1 was 4 versions stale: its 8 samples count 0.2 times'
        """
        samples = count(self.samples, "sample")
        stale = f"{self.worker} was {count(self.staleness, 'version')} stale"
        match self.outcome:
            case Outcome.APPLIED:
                return f"{stale}: its {samples} count in full"
            case Outcome.DAMPED:
                return f"{stale}: its {samples} count {self.factor:.3g} times"
            case Outcome.GATHERED:
                return f"{stale}: its {samples} wait to be applied together with others; the worker goes on"
            case _:
                back = f"; its {samples} go back" if self.samples else ""
                return f"{self.outcome.value.capitalize()} the push of {self.worker}: {self.reason}{back}"


def _applied_outcome(factor: float) -> Outcome:
    return Outcome.DAMPED if factor < 1 else Outcome.APPLIED


class Server:
    """Holds the parameters; hands them out with samples, and applies what comes back by the rules of a scheme.

    Not safe for threads: an engine calls it from one, or under a lock.

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
        Forecasts the workers' speeds; from now on the server's own. ``None`` takes all workers for equally fast.
    copy
        ``False`` works in the array given, for optimizers that hold it too.
    min_batch
        The fewest samples of a step: 2 for a model that normalizes over batches.

    Attributes
    ----------
    fleet
        The workers, and the version.
    ledger
        What became of every step.

    Raises
    ------
    ValueError
        If the parameters are no row of finite floats, or ``min_batch`` is out of range.

    Examples
    --------
    Two workers pull the first version; the second push is one version stale, and DynSGD counts it half:

    >>> from paceline.coordinator.asynchronous import SGD, EpochSampler, scheme
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
        min_batch: int = 1,
    ) -> None:
        if not 1 <= min_batch <= min(batch, sampler.samples):
            raise ValueError(
                "min_batch must be at least 1, and at most batch and the number of samples, got "
                f"min_batch={min_batch}, batch={batch} and {sampler.samples} samples"
            )
        self.store = ParameterStore(parameters, optimizer, scheme, batch, copy=copy)
        self.scheme = scheme
        self.sampler = sampler
        self.batch = batch
        self.min_batch = min_batch
        self.fleet = Workers()
        self.ledger = Ledger()
        self._size_planner = SizePlanner(self.fleet, scheme.sizing, batch, predictor, min_batch)
        self._next_step_id = 0
        for worker in workers:
            self.join(worker)

    def join(self, worker: str) -> None:
        """Register a worker; one that rejoins after it died starts again."""
        if worker in self.fleet.members:
            self.abandon(worker)
            return
        # Under SSP a newcomer at clock 0 would stop everybody until it had caught up.
        clock = self.fleet.slowest.clock if len(self.fleet) else 0
        self.fleet.members[worker] = WorkerState(worker, clock=clock)
        self._size_planner.join(worker)

    def leave(self, worker: str) -> tuple[str, ...]:
        """Remove a worker and return its samples to the pool. Return whose steps an update due now gave up."""
        self._end_step(self._member(worker), Outcome.ABANDONED)
        del self.fleet.members[worker]
        self._size_planner.leave(worker)
        return self._apply_gathered()

    def pull(self, worker: str) -> Pulled | None:
        """Start a step; ``None`` where the worker has to wait, or no samples are left: ask again after any push.

        A worker that pulls twice has lost its first step: that is given up, and its samples go back. Raises a
        ValueError if the worker has not joined.
        """
        member = self._member(worker)
        self._end_step(member, Outcome.ABANDONED)
        if self.sampler.is_exhausted or not self.scheme.gate.may_start(member, self.fleet):
            return None
        stamp = StepToken(self.version, self._next_step_id)
        self._next_step_id += 1
        assigned = self.sampler.draw(member.size, self.min_batch)
        member.step = WorkerStep(stamp, assigned, self.fleet.pushes)
        member.last_version = self.version
        return Pulled(stamp, self.store.parameters_for_step(stamp.step_id), assigned)

    def push(
        self,
        worker: str,
        stamp: StepToken,
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
        worker, stamp
            Who pushes, and what its pull was stamped with.
        gradient
            The mean over the samples, ``[P]``; read before this returns and not kept.
        samples
            How many of the samples assigned it is the mean of, the first ones; the others go back. All by default.
        seconds, comm_seconds
            The worker's own computing time, NaN if it is not known, and what the step took besides, pull and push.
        now
            When the push came, on any clock; only DSSP reads it.
        """
        member = self.fleet.members.get(worker)
        if member is None or member.step is None or member.step.stamp != stamp:
            return self._unmatched_push(worker, stamp, samples, seconds, comm_seconds)
        assigned = len(member.step.assigned)
        count = assigned if samples is None else samples
        wrong = gradient_error(gradient, self.store.parameters)
        if not 1 <= count <= assigned:
            wrong = f"it claims to be the mean of {count} samples, but {assigned} were assigned"
        if wrong:
            return self._end_wasted_step(member, Outcome.REFUSED, wrong, seconds=seconds)
        staleness = self.version - stamp.version
        member.record(staleness, now)
        self.fleet.pushes += 1
        self.scheme.gate.on_push(member, self.fleet)
        self._size_planner.report(worker, count, seconds, comm_seconds)
        if self.scheme.bound is not None and staleness > self.scheme.bound:
            reason = f"it is {staleness} versions stale, beyond the bound of {self.scheme.bound}"
            return self._end_wasted_step(member, Outcome.DROPPED, reason, staleness, seconds=seconds)
        return self._accept(member, gradient, count, staleness, seconds)

    def abandon(self, worker: str) -> tuple[str, ...]:
        """Give up a worker's step, if it is at one: its samples go back. Return whose steps were given up with it."""
        self._end_step(self._member(worker), Outcome.ABANDONED)
        return self._apply_gathered()

    def report(self, worker: str, samples: int, seconds: float, comm_seconds: float = 0.0) -> None:
        """Learn how long a worker took for samples of a step that it gave up half-way; a push reports by itself."""
        self.ledger.record_seconds(worker, Outcome.ABANDONED, seconds)
        self._size_planner.report(worker, samples, seconds, comm_seconds)

    def is_abandoned(self, worker: str, stamp: StepToken) -> bool:
        """Return whether a step was given up, so that computing on is a waste: ask between micro-batches."""
        member = self.fleet.members.get(worker)
        return member is None or member.step is None or member.step.stamp != stamp

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        return self.store.parameters.copy()

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
        return len(self.store.pushes)

    @property
    def is_finished(self) -> bool:
        """True if every sample of every epoch has been applied."""
        return self.sampler.is_finished

    @property
    def staleness(self) -> Array:
        """Each worker's smoothed staleness, ``[W]``, in versions; NaN before its first push."""
        return self.fleet.staleness

    @property
    def expected_staleness(self) -> Array:
        """The staleness forecast for each worker's next push, ``[W]``, in versions; NaN without a predictor."""
        return self._size_planner.staleness.copy()

    @property
    def sizes(self) -> Sizes:
        """Samples of each worker's next step, ``[W]``."""
        return self.fleet.sizes

    def staleness_reports(self) -> list[StalenessReport]:
        """Return every worker's staleness, seen and forecast, and whether it is a straggler."""
        staleness_W, expected_W = self.staleness, self.expected_staleness
        bounds = {"threshold": straggler_threshold(staleness_W), "expected_threshold": straggler_threshold(expected_W)}
        rows = zip(self.workers, self.sizes.tolist(), staleness_W.tolist(), expected_W.tolist(), strict=True)
        return [
            StalenessReport(
                worker=worker, size=size, batch=self.batch, staleness=seen, expected_staleness=expected, **bounds
            )
            for worker, size, seen, expected in rows
        ]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return parameters, version, optimizer and sampler, as arrays; steps under way count as given up.

        Workers join again after a restart, and forecasts are learned again within a few rounds.
        """
        # Neither in the sampler nor applied: what workers hold, and what is gathered.
        held = [member.step.assigned for member in self.fleet if member.step is not None]
        held += [push.assigned for push in self.store.pushes]
        sampler = {f"sampler/{name}": value for name, value in self.sampler.state_dict(held).items()}
        return {**self.store.state_dict(), **sampler, "place": np.array([self.version, self._next_step_id])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; steps under way are lost.

        A state of other parameters, another optimizer or another sampler raises a ValueError, and changes nothing.
        """
        sampler = substate(state, "sampler")
        wanted = {"parameters", "place", *(f"sampler/{name}" for name in self.sampler.state_dict())}
        if missing := sorted(wanted - set(state)):
            raise ValueError(f"the state must come from state_dict() of an asynchronous server, but lacks {missing}")
        self.sampler.validate_state(sampler)  # before anything is changed
        self.store.load_state_dict(state)
        self.sampler.load_state_dict(sampler)
        self.fleet.version, tickets = (int(value) for value in state["place"])
        # Beyond all tickets issued after the state was saved, of which none may fit a later step: more than a server
        # issues between two checkpoints.
        self._next_step_id = tickets + 2**40
        for member in self.fleet:
            member.step, member.abandoned_step, member.last_version = None, None, -1

    def _member(self, worker: str) -> WorkerState:
        if worker not in self.fleet.members:
            raise ValueError(f"worker must be one of {list(self.workers)}, got {worker!r}: call join({worker!r}) first")
        return self.fleet.members[worker]

    def _accept(
        self, worker_state: WorkerState, gradient: Vector, count: int, staleness: int, seconds: float
    ) -> Verdict:
        """Gather or apply a valid push, and return the samples that it left out."""
        step = worker_state.step
        assert step is not None
        factor = self.scheme.damping(staleness, len(self.fleet))
        push = Push(worker_state.name, step.assigned[:count], staleness, factor, seconds)
        if wrong := self.store.add(push, step.stamp.step_id, gradient):
            return self._end_wasted_step(worker_state, Outcome.REFUSED, wrong, seconds=seconds)
        worker_state.step = None
        self.sampler.return_samples(step.assigned[count:])
        given_up = self._apply_gathered()
        outcome = Outcome.GATHERED if self.store.pushes else _applied_outcome(factor)
        return Verdict(
            worker_state.name, outcome, self.version, count, staleness, factor=factor, abandoned_workers=given_up
        )

    def _end_wasted_step(
        self, worker_state: WorkerState, outcome: Outcome, reason: str, staleness: int = -1, *, seconds: float
    ) -> Verdict:
        samples = self._end_step(worker_state, outcome, staleness, seconds)
        given_up = self._apply_gathered()
        return Verdict(
            worker_state.name, outcome, self.version, samples, staleness, reason=reason, abandoned_workers=given_up
        )

    def _unmatched_push(
        self, worker: str, stamp: StepToken, samples: int | None, seconds: float, comm_seconds: float
    ) -> Verdict:
        """Return the verdict on a push that belongs to no step under way. It changes no parameters."""
        member, outcome = self.fleet.members.get(worker), Outcome.REFUSED
        if member is None:
            reason = f"it is not one of the {len(self.fleet)} workers; call join first"
        elif member.abandoned_step is not None and member.abandoned_step.stamp == stamp:
            outcome, reason = Outcome.DROPPED, "its step was given up before it came"
            assigned = len(member.abandoned_step.assigned)
            if samples is None or 1 <= samples <= assigned:
                # Its time is learned all the same: a worker whose steps are given up needs the forecast most.
                self.report(worker, samples or assigned, seconds, comm_seconds)
            member.abandoned_step = None
        elif stamp.version > self.fleet.version or stamp.step_id >= self._next_step_id:
            reason = f"its stamp {tuple(stamp)} is from the future; the version is {self.fleet.version}"
        else:
            reason = f"its stamp {tuple(stamp)} is not that of a step under way; did it push twice?"
        return Verdict(worker, outcome, self.version, reason=reason)

    def _end_step(
        self, worker_state: WorkerState, outcome: Outcome, staleness: int = 0, seconds: float = math.nan
    ) -> int:
        """End a step as wasted, if there is one; return how many samples go back."""
        step = worker_state.step
        if step is None:
            return 0
        self.store.discard(step.stamp.step_id)
        self.sampler.return_samples(step.assigned)
        self.ledger.record(worker_state.name, outcome, samples=len(step.assigned), staleness=staleness, seconds=seconds)
        # It may start from the same version again: behind a barrier nothing would ever come of its share otherwise.
        worker_state.step, worker_state.last_version = None, step.stamp.version - 1
        if outcome is Outcome.ABANDONED:
            worker_state.abandoned_step = step
        return len(step.assigned)

    def _apply_gathered(self) -> tuple[str, ...]:
        """Apply the gathered pushes, if they are due; return the workers whose steps were given up after that."""
        if not self.store.pushes:
            return ()
        # At the very end there are too few pushes to come for a barrier, or for a buffer to fill.
        last = self.sampler.is_exhausted and all(member.step is None for member in self.fleet)
        if not last and not self.scheme.aggregation.is_ready(len(self.store.pushes), self.fleet, self.scheme.bound):
            self.store.accumulate()
            return ()
        # Many at one version are no more than a better mean: a longer way along it would leave where it holds.
        pushes = self.store.step(float(max(len(self.fleet), 1)), self.sampler.applied)
        self.fleet.version += 1
        for push in pushes:
            self.sampler.mark_applied(push.assigned)
            outcome, samples = _applied_outcome(push.factor), len(push.assigned)
            self.ledger.record(push.worker, outcome, samples=samples, staleness=push.staleness, seconds=push.seconds)
        if not self.scheme.abandons_stale_steps or self.scheme.bound is None:
            return ()
        # The scheme does not let steps finish that have passed the bound.
        oldest = self.fleet.version - self.scheme.bound
        stale = [one for one in self.fleet if one.step is not None and one.step.stamp.version < oldest]
        for member in stale:
            assert member.step is not None
            # The mean number of pushes of a worker in the step's time.
            self.fleet.lost_steps += (self.fleet.pushes - member.step.pushes_at_pull) / len(self.fleet)
            self._end_step(member, Outcome.ABANDONED)
        return tuple(member.name for member in stale)
