"""Ends of steps: gathered, applied in an update, or wasted; and the answers to pushes that end no step."""

from __future__ import annotations

import math

from paceline.coordinator.asynchronous.epoch_sampler import Drawn, EpochSampler
from paceline.coordinator.asynchronous.gathered import Gathered, Push
from paceline.coordinator.asynchronous.ledger import Ledger, Outcome
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.schemes import Scheme
from paceline.coordinator.asynchronous.store import Store
from paceline.coordinator.asynchronous.verdict import Verdict
from paceline.coordinator.asynchronous.workers import Member, Stamp, Workers


class Updates:
    """Ends steps by the rules of a scheme, and books each in the ledger.

    Parameters
    ----------
    scheme
        The rules.
    fleet, sampler, ledger, store
        The server's own; nothing here remembers more than the pushes that wait for others.
    batch, is_linear
        Samples of a full batch, and whether the optimizer's steps grow with their gradients.
    """

    def __init__(
        self,
        scheme: Scheme,
        fleet: Workers,
        sampler: EpochSampler,
        ledger: Ledger,
        store: Store,
        batch: int,
        is_linear: bool,
    ) -> None:
        self.scheme, self.fleet, self.sampler, self.ledger, self.store = scheme, fleet, sampler, ledger, store
        self.gathered = Gathered(scheme.gathering.mean, scheme.by_samples, batch, is_linear)

    def take(self, member: Member, gradient: Vector, count: int, staleness: int, seconds: float) -> Verdict:
        """Gather or apply a sound push, and let the samples that it left out go back."""
        step = member.step
        assert step is not None
        factor = self.scheme.damping.factor(staleness, len(self.fleet))
        push = Push(member.name, step.drawn.first(count), staleness, factor, seconds)
        if wrong := self.store.take(member.name, step.stamp.ticket, gradient, self.gathered.weight(push)):
            return self.waste(member, Outcome.REFUSED, wrong, seconds=seconds)
        member.step = None
        self.sampler.give_back(step.drawn.after(count))
        self.gathered.pushes.append(push)
        given_up = self.settle()
        return Verdict(
            worker=member.name,
            outcome=Outcome.GATHERED if len(self.gathered) else counted(factor),
            version=self.fleet.version,
            samples=count,
            staleness=staleness,
            factor=factor,
            given_up=given_up,
        )

    def waste(self, member: Member, outcome: Outcome, reason: str, staleness: int = -1, *, seconds: float) -> Verdict:
        """End a step whose push is of no use."""
        samples = self.close(member, outcome, staleness, seconds)
        given_up = self.settle()
        return Verdict(
            worker=member.name,
            outcome=outcome,
            version=self.fleet.version,
            samples=samples,
            staleness=staleness,
            reason=reason,
            given_up=given_up,
        )

    def stray(self, worker: str, stamp: Stamp, *, issued: int) -> Verdict:
        """Return the verdict on a push that belongs to no step under way. It changes no parameters.

        Parameters
        ----------
        worker, stamp
            Whose, and of which step.
        issued
            How many steps were begun so far.
        """
        member, outcome = self.fleet.members.get(worker), Outcome.REFUSED
        if member is None:
            reason = f"it is not one of the {len(self.fleet)} workers; let it join first"
        elif member.late(stamp) is not None:
            outcome, reason = Outcome.DROPPED, "its step was given up before it came"
            member.abandoned = None
        elif stamp.version > self.fleet.version or stamp.ticket >= issued:
            reason = f"its stamp {tuple(stamp)} is from the future; the version is {self.fleet.version}"
        else:
            reason = f"its stamp {tuple(stamp)} is not that of a step under way; did it push twice?"
        return Verdict(worker=worker, outcome=outcome, version=self.fleet.version, reason=reason)

    @property
    def held(self) -> list[Drawn]:
        """Samples that workers hold or that are gathered: neither in the sampler nor applied."""
        at_work = [member.step.drawn for member in self.fleet if member.step is not None]
        return at_work + [push.drawn for push in self.gathered.pushes]

    def restart(self, version: int) -> None:
        """Continue from another version: steps under way and gathered pushes are lost."""
        self.fleet.version, self.gathered.pushes = version, []
        for member in self.fleet:
            member.step, member.abandoned, member.worked_on = None, None, -1

    def close(self, member: Member, outcome: Outcome, staleness: int = 0, seconds: float = math.nan) -> int:
        """End a step as wasted, if there is one; return how many samples go back."""
        step = member.step
        if step is None:
            return 0
        self.store.forget(step.stamp.ticket)
        self.sampler.give_back(step.drawn)
        self.ledger.note(member.name, outcome, samples=len(step.drawn), staleness=staleness, seconds=seconds)
        # It may start from the same version again: behind a barrier nothing would ever come of its share otherwise.
        member.step, member.worked_on = None, step.stamp.version - 1
        if outcome is Outcome.ABANDONED:
            member.abandoned = step
        return len(step.drawn)

    def settle(self) -> tuple[str, ...]:
        """Apply the gathered pushes, if it is time; return the workers whose steps were given up after that."""
        if not len(self.gathered):
            return ()
        # At the very end there are too few pushes to come for a barrier, or for a buffer to fill.
        last = self.sampler.empty and all(member.step is None for member in self.fleet)
        if not last and not self.scheme.gathering.ready(len(self.gathered), self.fleet, self.scheme.bound):
            self.store.keep()
            return ()
        # Many at one version are no more than a better mean: a longer way along it would leave where it holds.
        factor = min(self.gathered.factor, float(max(len(self.fleet), 1)))
        self.store.step(factor, self.sampler.applied, self.gathered.scale)
        self.fleet.version += 1
        for push in self.gathered.pushes:
            self.sampler.apply(push.drawn)
            outcome, samples = counted(push.factor), len(push.drawn)
            self.ledger.note(push.worker, outcome, samples=samples, staleness=push.staleness, seconds=push.seconds)
        self.gathered.pushes = []
        return self._refresh()

    def _refresh(self) -> tuple[str, ...]:
        """Give up the steps that have passed the bound, if the scheme does not let them finish."""
        if not self.scheme.refresh or self.scheme.bound is None:
            return ()
        oldest = self.fleet.version - self.scheme.bound
        late = [one for one in self.fleet if one.step is not None and one.step.stamp.version < oldest]
        for member in late:
            assert member.step is not None
            self.fleet.give_up(member.step)
            self.close(member, Outcome.ABANDONED)
        return tuple(member.name for member in late)


def counted(factor: float) -> Outcome:
    """Return the outcome of a push that was applied."""
    return Outcome.DAMPED if factor < 1 else Outcome.APPLIED
