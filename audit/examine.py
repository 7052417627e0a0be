"""The audit itself: which runs, in which order, and what follows from them.

A script is run a few steps at a time, each time from the same start: twice alike, then with the same samples in every
step on other ranks and in other micro-batches, in batches of the same sizes; a job with a balanced loader also with
uneven sizes; and, where it can be, as one process. If a sample's weight depends on where it lands, gradients differ.
A further run (:mod:`paceline.audit.probe`) tells causes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.audit import arrange, compare, probe
from paceline.audit.plan import Balanced, Plan
from paceline.audit.tape import DRAWN, Tape
from paceline.audit.verdict import Cause, Status, Verdict

FLOORS = {"float64": 1e-8, "float32": 1e-3}
COARSE = 3e-2
"""Relative deviations that rounding may cause, in these precisions and in coarser ones."""

RATIO = 1e-6
"""Relative deviation within which two losses are the same."""

CLOSE = 0.01
"""Distance of a power from a whole number within which it is that."""

NOISIEST = 0.1
"""Relative deviation of two equal runs above which nothing can be told."""


@dataclass(frozen=True)
class Run:
    """What a run left: the records of its ranks, the folder in which they lie, and its last words if it failed."""

    tapes: list[Tape]
    folder: str = ""
    error: str = ""


Runner = Callable[[Plan, bool], Run]
"""Runs the script by a plan, with all its ranks, or as one process if the second argument is true."""


@dataclass
class Audit:
    """An audit under way.

    Parameters
    ----------
    run
        Runs the script.
    steps
        Steps that are compared.
    notebook
        Whether ranks are pretended, so that there is no loader of a script to speak of.
    """

    run: Runner
    steps: int = 3
    notebook: bool = False
    found: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    noise: float = 0.0
    base: Run = field(default_factory=lambda: Run([]))
    plan: Plan = field(default_factory=Plan)

    def verdict(self) -> Verdict:
        """Run the script and say what follows."""
        failed = self._begin()
        if failed is not None:
            return failed
        return self._repeats() or self._ranks_agree() or self._moved() or self._divided() or self._exact()

    # -- the first run ---------------------------------------------------------------------------------------------

    def _begin(self) -> Verdict | None:
        """Run the script as it is, in double precision if it can."""
        for precision in ("float64", "float32"):
            self.plan = Plan(steps=self.steps, precision=precision)
            self.base = self.run(self.plan, False)
            if self.base.tapes and not self.base.error:
                break
        else:
            return self._unknown(Cause.FAILED if self.base.error else Cause.NO_STEPS, self.base.error)
        self.plan = replace(self.plan, supplies=self.base.folder)
        if not arrange.shared(self.base.tapes) and not self._balanced:
            return self._unknown(Cause.NO_SAMPLES)
        beside = any(step.facts.get("beside") or step.facts.get("draws") for step in self.base.tapes[0].steps)
        if not self._balanced and beside and self._streams[0].startswith(DRAWN):
            return self._unknown(Cause.NO_SAMPLES, "a step draws more than the numbers of its samples")
        if not self._balanced and not self.notebook:
            self.notes.append(
                "The script has no BalancedLoader, so its own sizes stay: the audit says whether a sample weighs the "
                "same on whichever rank and in whichever micro-batch it lands."
            )
        if len(self.base.tapes[0].steps) < self.steps:
            self.notes.append(f"The script took {len(self.base.tapes[0].steps)} steps only.")
        if self.notebook:
            self.notes.append("Dropout is off.")
            return None
        self.notes.append("Dropout and loading processes are off; what augments a sample is kept from the first run.")
        return None

    @property
    def _balanced(self) -> list[dict[str, Any]]:
        return list(self.base.tapes[0].facts.get("balanced", []))

    @property
    def precision(self) -> str:
        """The coarsest precision of the parameters."""
        known = self.base.tapes[0].facts.get("dtypes", ["float64"]) if self.base.tapes else ["float64"]
        return max(known, key=lambda name: FLOORS.get(name, COARSE))

    @property
    def tolerance(self) -> float:
        """The largest relative deviation that rounding and noise explain."""
        return max(FLOORS.get(self.precision, COARSE), 10 * self.noise)

    def _compared(self, name: str, plan: Plan) -> tuple[compare.Difference | None, Run]:
        """Run a plan and compare it with the first run."""
        run = self.run(plan, False)
        if run.error or not run.tapes:
            self.notes.append(f"The run with {name} failed: {run.error}")
            return None, run
        found = compare.difference(self.base.tapes, run.tapes)
        self.found[name] = found.largest
        return found, run

    # -- noise -----------------------------------------------------------------------------------------------------

    def _repeats(self) -> Verdict | None:
        """Run the script once more, alike."""
        again, run = self._compared("an equal run", self.plan)
        if again is not None and _digests(run.tapes) != _digests(self.base.tapes):
            self.notes.append("Two equal runs get different samples: the order is random, whatever is seeded.")
            again, _ = self._compared(
                "an equal run", replace(self.plan, arranged=arrange.arranged(self.base.tapes, arrange.as_they_were))
            )
        if again is None:
            return self._unknown(Cause.FAILED, "an equal run did not get as far as the first")
        self.noise = again.largest
        if self.noise > NOISIEST:
            return self._unknown(Cause.NOISE, f"by {self.noise:.1e} of the gradient")
        return None

    # -- what one run shows ----------------------------------------------------------------------------------------

    def _ranks_agree(self) -> Verdict | None:
        """Look whether the ranks begin alike, step alike, and have different samples."""
        tapes = self.base.tapes
        if (where := compare.not_a_number(tapes)) is not None:
            return self._not(Cause.NOT_A_NUMBER, where)
        if len(tapes) < 2:
            return None
        apart = compare.ranks_differ(tapes)
        if compare.starts_differ(tapes) > self.tolerance:
            if apart.largest > self.tolerance and _same_shapes(tapes):
                return None if compare.ends_differ(tapes) < self.tolerance else self._sharded_or(Cause.STARTS, apart)
            return self._not(Cause.STARTS, apart)
        if apart.largest > self.tolerance and compare.ends_differ(tapes) > self.tolerance:
            return self._not(Cause.NOT_AVERAGED, apart)
        return self._order(tapes)

    def _sharded_or(self, cause: Cause, apart: compare.Difference) -> Verdict | None:
        """Ranks that hold parts of one model differ from the start, as they should."""
        names = [name for name in self.base.tapes[0].start if "flat_param" in name]
        return None if names else self._not(cause, apart)

    def _order(self, tapes: Sequence[Tape]) -> Verdict | None:
        samplers = [tape.facts.get("samplers", {}) for tape in tapes]
        for stream in samplers[0]:
            said = [known[stream] for known in samplers if stream in known]
            if len({(seed, epoch, shuffle) for _, _, shuffle, seed, epoch in said}) > 1:
                seeds = ", ".join(f"rank {rank}: {one[3]}" for rank, one in enumerate(said))
                return self._not(Cause.ORDER, None, f"seeds of the samplers: {seeds}")
        for stream in arrange.shared(tapes):
            digests = [[one.digest for batch in tape.streams[stream] for one in batch] for tape in tapes]
            if all(sorted(digests[0]) == sorted(other) for other in digests[1:]) and len(set(digests[0])) > 1:
                return self._not(Cause.SAME_DATA, None, "every rank got the same ones in these steps")
        return None

    # -- the same samples elsewhere --------------------------------------------------------------------------------

    def _moved(self) -> Verdict | None:
        return self._moved_balanced() if self._balanced else self._moved_plain()

    def _moved_plain(self) -> Verdict | None:
        given = arrange.arranged(self.base.tapes, arrange.mixed(self.base.tapes, 1))
        if not arrange.moved(given):
            return self._unknown(Cause.NO_SAMPLES, "there was one rank, one micro-batch: nothing to exchange")
        found, _ = self._compared("samples exchanged", replace(self.plan, arranged=given))
        if found is None:
            return self._unknown(Cause.FAILED, "it did not run with its samples exchanged")
        if found.largest > self.tolerance:
            return self._told_apart(found)
        return self._alone()

    def _moved_balanced(self) -> Verdict | None:
        uneven, run = self._compared("uneven sizes", replace(self.plan, balanced=Balanced(uneven=True, seed=1)))
        if uneven is None:
            return self._not(Cause.UNEVEN, None, run.error)
        if (where := compare.not_a_number(run.tapes)) is not None:
            return self._not(Cause.NOT_A_NUMBER, where)
        sizes = [row for step in run.tapes[0].steps for row in step.facts.get("sizes", [])]
        if all(len(set(row)) == 1 for row in sizes):
            self.notes.append("Sizes did not differ: batches are too small, or steps too few.")
        if uneven.largest <= self.tolerance:
            return None
        equal, _ = self._compared("samples exchanged", replace(self.plan, balanced=Balanced(seed=1)))
        if equal is None or equal.largest > self.tolerance:
            return self._told_apart(uneven)
        return self._by_size(uneven)

    def _alone(self) -> Verdict | None:
        """Compare the first step with that of one process on all samples, where the script runs as one."""
        tapes, found = self.base.tapes, None
        if len(tapes) < 2:
            return None
        plan = replace(self.plan, steps=max(2, self.steps))
        run = self.run(replace(plan, arranged=arrange.arranged(tapes, arrange.in_one_process(None))), True)
        wanted = {stream: len(arrange.groups(tapes[0], stream)[0]) for stream in arrange.shared(tapes)}
        if run.tapes and not run.error:
            taken = {
                stream: len(groups[0])
                for stream in wanted
                if stream in run.tapes[0].streams and (groups := arrange.groups(run.tapes[0], stream))
            }
            if taken and taken != wanted:  # one process takes more micro-batches a step, as nanoGPT does
                number = max(taken.values())
                given = arrange.arranged(tapes, arrange.in_one_process(number))
                run = self.run(replace(plan, arranged=given), True)
        if run.error or not run.tapes or run.tapes[0].world_size != 1:
            self.notes.append("It was not compared with one process: it does not run as one.")
            return None
        found = compare.relative(run.tapes[0].steps[0].gradients, tapes[0].steps[0].gradients)
        self.found["one process, first step"] = max(found.values(), default=0.0)
        if self.found["one process, first step"] <= self.tolerance:
            return None
        return self._unlike_one(compare.Difference((found,)), run.tapes[0])

    def _unlike_one(self, found: compare.Difference, one: Tape) -> Verdict:
        """Say why a step differs from one process's although samples may be exchanged."""
        ours, theirs = (compare.flat([tape.steps[0]]) for tape in (self.base.tapes[0], one))
        factor = float(ours @ theirs / (theirs @ theirs or 1))
        ranks = len(self.base.tapes)
        if np.abs(ours - factor * theirs).max(initial=0) > 100 * self.tolerance * np.abs(ours).max(initial=0):
            return self._told_apart(found, alone=True)
        detail = f"{factor:.4g} times that of one process"
        if abs(factor - 1 / ranks) < 0.01 / ranks:
            return self._not(Cause.SUM, found, detail)
        return self._not(Cause.TIMES_RANKS if factor > 1 else Cause.UNKNOWN, found, detail)

    # -- causes ----------------------------------------------------------------------------------------------------

    def _told_apart(self, found: compare.Difference, *, alone: bool = False) -> Verdict:
        """Run the probing run and say what it shows."""
        shown = self._probe_balanced() if self._balanced else self._probe_plain(alone)
        draws = any(step.facts.get("draws") for step in self.base.tapes[0].steps)
        fine = 1e-5 if self.precision == "float64" else 2e-2
        if shown is None:
            return self._unknown(Cause.CHANCE) if draws else self._not(Cause.UNKNOWN, found)
        if shown.control > 100 * self.tolerance:
            return self._unknown(Cause.CHANCE) if draws else self._not(Cause.CARRIED, found)
        mixing = self.base.tapes[0].facts.get("mixing", [])
        if shown.residual > fine or any(abs(share - 0.5) > 0.5 - 1e-9 for share in shown.shares if share == share):
            if hooks := self.base.tapes[0].facts.get("hooks"):
                return self._not(Cause.HOOKS, found, f"on {hooks[0]}" + (" and others" if len(hooks) > 1 else ""))
            detail = ", ".join(mixing) or "negatives within the batch, hard examples, mixup"
            return self._not(Cause.ROWS, found, detail)
        if any(abs(share - shown.expected) > fine for share in shown.shares):
            return self._not(Cause.TERMS, found, probe.named(shown, 10 * fine))
        if abs(shown.micro_weight - 1) > fine:
            return self._not(Cause.MICRO_BATCHES, found, f"the first weighs {shown.micro_weight:.3g} times its share")
        if abs(shown.rank_weight - 1) > fine:
            return self._not(Cause.RANKS, found, f"the first weighs {shown.rank_weight:.3g} times its share")
        if np.isnan(shown.expected):  # batches of one sample, which cannot be put together of two
            return self._not(Cause.UNKNOWN, found)
        return self._not(Cause.TERMS, found, "three samples that were probed have the same of it: told by what is left")

    def _probe_plain(self, alone: bool) -> probe.Probe | None:
        given, counts = probe.probing(self.base.tapes)
        each = {name: len(batches) // len(probe.STEPS) for name, batches in given.items()}
        main = max(given, key=lambda name: sum(len(refs) for row in given[name] for refs in row))
        if alone:
            given = {name: [[[ref for refs in row for ref in refs]] for row in rows] for name, rows in given.items()}
        sizes = [[len(refs) for refs in row] for row in given[main][: each[main]]]
        lengths = self.base.tapes[0].facts.get("lengths", {})
        known = [lengths[name] // each[name] for name in given if lengths.get(name) and each[name]]

        def of(steps: range) -> Plan:
            part = {name: rows[steps.start * each[name] : steps.stop * each[name]] for name, rows in given.items()}
            return self._frozen(len(steps), arranged=part)

        vectors = self._probed(of, min(known, default=len(probe.STEPS)), each, alone)
        return None if vectors is None else probe.shown(vectors, sizes, counts)

    def _probe_balanced(self) -> probe.Probe | None:
        kind = self._balanced[0]
        if len(kind["candidates"]) < 3:
            return None
        numbers, counts = zip(*kind["candidates"], strict=True)
        chosen = probe.apart(counts)
        ranks, own = int(kind["ranks"]), [numbers[place % len(numbers)] for place in range(kind["step"])]
        given = probe.numbers_of(kind["step"], ranks, 1, [numbers[place] for place in chosen], own)

        def of(steps: range) -> Plan:
            return self._frozen(len(steps), balanced=Balanced(numbers=given[steps.start : steps.stop]))

        vectors = self._probed(of, kind["batches"], {}, alone=False)
        sizes = [[kind["step"] // ranks] * ranks]
        return None if vectors is None else probe.shown(vectors, sizes, tuple(counts[place] for place in chosen))

    def _probed(
        self, of: Callable[[range], Plan], epoch: int, each: dict[str, int], alone: bool
    ) -> dict[str, Array] | None:
        """Return the gradients of all probing steps, as many in one run as an epoch has."""
        found: dict[str, Array] = {}
        many = min(max(epoch, 1), len(probe.STEPS))
        for first in range(0, len(probe.STEPS), many):
            steps = range(first, min(first + many, len(probe.STEPS)))
            run = self.run(of(steps), alone)
            names = [probe.STEPS[number] for number in steps]
            vectors = None if run.error or not run.tapes else probe.gradients(run.tapes[0], names, each)
            if vectors is None or not all(np.isfinite(vector).all() for vector in vectors.values()):
                return None
            found |= vectors
        return found

    def _frozen(self, steps: int, **given: Any) -> Plan:
        """Return a plan of so many steps from the same parameters; two models may take turns within a step."""
        each = max(len(group) for group in arrange.grouped(self.base.tapes[0]))
        return replace(self.plan, frozen=True, steps=steps * each, **given)

    def _by_size(self, found: compare.Difference) -> Verdict:
        """Tell sums from means that are not weighted: by how a rank's weight follows its size."""
        kind = self._balanced[0]
        if self._streams:
            return self._not(Cause.OTHER_DATA, found, ", ".join(self._streams))
        shown = self._probe_balanced()
        if shown is not None and shown.control > 100 * self.tolerance:
            return self._not(Cause.CARRIED, found)
        power = self._power(kind) if kind["candidates"] else None
        if power is not None and power == 2:
            return self._not(Cause.SUM, found, "a rank's weight grows with the square of its batch")
        if power is not None and power == 0:
            return self._not(Cause.NOT_WEIGHTED, found)
        mixing = self.base.tapes[0].facts.get("mixing", [])
        return self._not(Cause.ROWS if mixing else Cause.UNKNOWN, found, ", ".join(mixing))

    @property
    def _streams(self) -> list[str]:
        """Samples of plain loaders."""
        return arrange.shared(self.base.tapes)

    def _power(self, kind: dict[str, Any]) -> float | None:
        """Return the power of a rank's size that its weight follows: 1 if every sample weighs the same."""
        one, other = (kind["candidates"][place][0] for place in (0, -1))
        numbers = [[one] * kind["step"], [other] * kind["step"], [one] * kind["step"], [one] * kind["step"]]
        rows = self._rows(Balanced(uneven=True, numbers=numbers))
        if rows is None or len(rows[3][0]) != 2 or rows[3][0][0] == rows[3][0][1]:
            return None
        first = rows[3][0][0]  # in the last step, the first rank gets the one sample and the second the other
        numbers[3] = [one] * first + [other] * (kind["step"] - first)
        mixed = self._rows(Balanced(uneven=True, numbers=numbers))
        if mixed is None:
            return None
        own, rest, _ = probe.of_two(mixed[3][1], mixed[0][1], mixed[1][1])
        sizes = [np.array(row, float) for row, _ in mixed]
        for power in (0.0, 2.0):  # gradients of whole batches scale with their ranks' sizes too
            whole = [float((row**power).sum()) for row in sizes]
            expected = (sizes[3][0] / sizes[3][1]) ** power * whole[1] / whole[0]
            if rest and abs(own / rest / expected - 1) < CLOSE:
                return power
        return None

    def _rows(self, balanced: Balanced) -> list[tuple[list[int], Array]] | None:
        """Return the ranks' sizes and the gradient of four steps from the same parameters."""
        run = self.run(self._frozen(4, balanced=balanced), False)
        steps = arrange.grouped(run.tapes[0])[:4] if run.tapes and not run.error else []
        if len(steps) < 4:
            return None
        return [(step[0].facts["sizes"][0], compare.flat(step)) for step in steps]

    def _divided(self) -> Verdict | None:
        """Look whether the losses of micro-batches are summed as they are."""
        first = self.base.tapes[0]
        number = max(
            (len(group) for stream in arrange.shared([first]) for group in arrange.groups(first, stream)), default=1
        )
        for step in first.steps:
            ratios, kept = step.facts.get("ratio", []), step.facts.get("kept", [1.0])[0]
            undivided = len(ratios) == number and all(abs(ratio - 1) < RATIO for ratio in [*ratios, kept])
            if number > 1 and undivided:
                return self._not(Cause.NOT_DIVIDED, None, f"a step's gradient is {number} times a mean's")
        return None

    # -- verdicts --------------------------------------------------------------------------------------------------

    def _said(self) -> dict[str, Any]:
        tapes = self.base.tapes
        known = {"steps": len(tapes[0].steps), "ranks": len(tapes), "precision": self.precision} if tapes else {}
        return known | {"noise": self.noise, "notes": tuple(self.notes), "runs": self.found}

    def _exact(self) -> Verdict:
        return Verdict(status=Status.EXACT, deviation=max(self.found.values(), default=0.0), **self._said())

    def _unknown(self, cause: Cause, detail: str = "") -> Verdict:
        return Verdict(status=Status.COULD_NOT_TELL, cause=cause, detail=detail, **self._said())

    def _not(self, cause: Cause, found: compare.Difference | None, detail: str = "") -> Verdict:
        step, name = found.begins(self.tolerance) if found else (0, "")
        amount = found.largest if found else 0.0
        if found and amount < 10 * self.tolerance and self.noise > 0:
            return self._unknown(Cause.NOISE, f"by {self.noise:.1e}, where the deviation is {amount:.1e}")
        where: dict[str, Any] = {"deviation": amount, "first_step": step, "parameter": name}
        return Verdict(status=Status.NOT_EXACT, cause=cause, detail=detail, **where, **self._said())


def _digests(tapes: Sequence[Tape]) -> list[dict[str, list[list[int]]]]:
    return [
        {name: [[one.digest for one in batch] for batch in batches] for name, batches in tape.streams.items()}
        for tape in tapes
    ]


def _same_shapes(tapes: Sequence[Tape]) -> bool:
    shapes = [{name: array.shape for name, array in tape.start.items()} for tape in tapes]
    return all(other == shapes[0] for other in shapes[1:])
