"""The audit itself: which runs, in which order, and what follows from them.

A script is run a few steps at a time, each time from the same start: twice alike, then with the same samples in every
step on other ranks and in other micro-batches, in batches of the same sizes; a job with a balanced loader also with
uneven sizes; and, where it can be, as one process. If a sample's weight depends on where it lands, gradients differ.
A further run (:mod:`paceline.audit.causes`) tells causes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.audit import arrange, causes, compare
from paceline.audit.run import RANDINT_STREAM, AuditPlan, AuditRun, BalancedRun, RankRecord, Runner
from paceline.audit.verdict_types import AuditStatus, AuditVerdict, Cause


@dataclass
class Audit:
    """The audit of a script: its runs, one after the other, until a verdict follows."""

    run: Runner  # runs the script
    steps: int = 3  # that are compared
    is_script: bool = True  # with loaders of its own, and not a loss alone
    deviations: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    noise: float = 0.0
    first_run: AuditRun = field(default_factory=lambda: AuditRun([]))
    plan: AuditPlan = field(default_factory=AuditPlan)

    def verdict(self) -> AuditVerdict:
        failed = self._run_unchanged()
        if failed is not None:
            return failed
        moved = self._check_uneven_sizes if self.balanced_loaders else self._check_moved_samples
        return (
            self._check_repeatability()
            or self._check_ranks()
            or moved()
            or self._check_division()
            or self.exact_verdict()
        )

    # -- the first run ---------------------------------------------------------------------------------------------

    def _run_unchanged(self) -> AuditVerdict | None:
        """Run the script as it is, in double precision if it can."""
        for precision in ("float64", "float32"):
            self.plan = AuditPlan(steps=self.steps, precision=precision)
            self.first_run = self.run(self.plan, False)
            if self.first_run.records and not self.first_run.error:
                break
        else:
            error = self.first_run.error
            return self.inconclusive_verdict(Cause.FAILED if error else Cause.NO_STEPS, error)
        self.plan = replace(self.plan, samples_folder=self.first_run.folder)
        steps = self.first_run.records[0].steps
        if not self.balanced_loaders:
            if not self.streams:
                return self.inconclusive_verdict(Cause.NO_SAMPLES)
            beside = any(step.facts.get("beside") or step.facts.get("draws") for step in steps)
            if beside and self.streams[0].startswith(RANDINT_STREAM):
                return self.inconclusive_verdict(Cause.NO_SAMPLES, "a step draws more than the numbers of its samples")
            if self.is_script:
                self.notes.append(
                    "The script has no BalancedLoader, so its batch sizes stay unchanged: the audit checks that a "
                    "sample has the same weight on any rank and in any micro-batch."
                )
        if len(steps) < self.steps:
            self.notes.append(f"The script took only {len(steps)} steps.")
        of_script = "Dropout and loading processes are disabled, and a sample is augmented the same way in every run."
        self.notes.append(of_script if self.is_script else "Dropout is off.")
        return None

    # -- noise -----------------------------------------------------------------------------------------------------

    def _check_repeatability(self) -> AuditVerdict | None:
        """Run the script a second time unchanged, which shows its noise; return a verdict if that settles it."""
        again, run = self.run_and_compare("an equal run", self.plan)
        if again is not None and _sample_digests(run.records) != _sample_digests(self.first_run.records):
            self.notes.append("Two equal runs get different samples: the order is random, whatever is seeded.")
            same_samples = arrange.arrange_samples(self.first_run.records, arrange.original_placement)
            again, _ = self.run_and_compare("an equal run", replace(self.plan, arrangement=same_samples))
        if again is None:
            return self.inconclusive_verdict(Cause.FAILED, "a second, equal run ended earlier than the first")
        self.noise = again.largest
        # equal runs that differ by more than 10% cannot be compared
        if self.noise > 0.1:
            return self.inconclusive_verdict(Cause.NOISE, f"by {self.noise:.1e} of the gradient")
        return None

    # -- what one run shows ----------------------------------------------------------------------------------------

    def _check_ranks(self) -> AuditVerdict | None:
        """Look whether the ranks begin alike, step alike, and have different samples."""
        records = self.first_run.records
        if (where := compare.find_nonfinite(records)) is not None:
            return self.not_exact_verdict(Cause.NOT_A_NUMBER, where)
        if not any(compare.flat_gradients(record.steps).any() for record in records):
            return self.inconclusive_verdict(Cause.ZERO)
        if len(records) < 2:
            return None
        difference = compare.compare_ranks(records)
        final_parameter_deviation = compare.max_rank_deviation([record.steps[-1].parameters for record in records])
        if compare.max_rank_deviation([record.initial_parameters for record in records]) > self.tolerance:
            shapes = [{name: array.shape for name, array in record.initial_parameters.items()} for record in records]
            if any("flat_param" in name for name in shapes[0]) or any(other != shapes[0] for other in shapes[1:]):
                return None  # of FSDP1: ranks hold different shards
            if difference.largest > self.tolerance > final_parameter_deviation:
                return None
            return self.not_exact_verdict(Cause.STARTS, difference)
        if difference.largest > self.tolerance and final_parameter_deviation > self.tolerance:
            return self.not_exact_verdict(Cause.NOT_AVERAGED, difference)
        samplers = [record.facts.get("samplers", {}) for record in records]
        for stream in samplers[0]:
            orders = [known[stream] for known in samplers if stream in known]
            if len({(seed, epoch, shuffle) for _, _, shuffle, seed, epoch in orders}) > 1:
                seeds = ", ".join(f"rank {rank}: {one[3]}" for rank, one in enumerate(orders))
                return self.not_exact_verdict(Cause.ORDER, None, f"seeds of the samplers: {seeds}")
        for stream in self.streams:
            digests = [[one.digest for batch in record.streams[stream] for one in batch] for record in records]
            if all(sorted(digests[0]) == sorted(other) for other in digests[1:]) and len(set(digests[0])) > 1:
                return self.not_exact_verdict(Cause.SAME_DATA, None, "every rank got the same ones in these steps")
        return None

    # -- the same samples elsewhere --------------------------------------------------------------------------------

    def _check_moved_samples(self) -> AuditVerdict | None:
        records = self.first_run.records
        exchanged = arrange.arrange_samples(records, arrange.shuffled_placement(records, 1))
        if not arrange.has_moved_samples(exchanged):
            detail = "there was one rank, one micro-batch: nothing to exchange"
            return self.inconclusive_verdict(Cause.NO_SAMPLES, detail)
        found, _ = self.run_and_compare("samples exchanged", replace(self.plan, arrangement=exchanged))
        if found is None:
            return self.inconclusive_verdict(Cause.FAILED, "it did not run with its samples exchanged")
        if found.largest > self.tolerance:
            return causes.find_cause(self, found)
        return self._check_one_process()

    def _check_uneven_sizes(self) -> AuditVerdict | None:
        plan = replace(self.plan, balanced=BalancedRun(uneven_sizes=True, seed=1))
        uneven, run = self.run_and_compare("uneven sizes", plan)
        if uneven is None:
            return self.not_exact_verdict(Cause.UNEVEN, None, run.error)
        if (where := compare.find_nonfinite(run.records)) is not None:
            return self.not_exact_verdict(Cause.NOT_A_NUMBER, where)
        if uneven.largest <= self.tolerance:
            sizes = [row for step in run.records[0].steps for row in step.facts.get("sizes", [])]
            if any(len(set(row)) > 1 for row in sizes):
                return None
            detail = "sizes did not differ: batches are too small, or steps too few"
            return self.inconclusive_verdict(Cause.NO_SAMPLES, detail)
        for number, seen in enumerate(_dataset_checksums(self.first_run.records)):
            if None not in seen and len(set(seen)) > 1:
                detail = f"seen in the first samples of loader {number}"
                return self.not_exact_verdict(Cause.DIFFERENT_DATA, None, detail)
        equal, _ = self.run_and_compare("samples exchanged", replace(self.plan, balanced=BalancedRun(seed=1)))
        if equal is None or equal.largest > self.tolerance:
            return causes.find_cause(self, uneven)
        return causes.find_size_cause(self, uneven)

    def _check_one_process(self) -> AuditVerdict | None:
        """Compare the first step with that of one process on all samples, where the script runs as one."""
        records, found = self.first_run.records, None
        if len(records) < 2:
            return None
        plan = replace(self.plan, steps=max(2, self.steps))
        joined = arrange.arrange_samples(records, arrange.one_process_placement(None))
        run = self.run(replace(plan, arrangement=joined), True)
        wanted = {stream: len(arrange.batches_by_step(records[0], stream)[0]) for stream in self.streams}
        if run.records and not run.error:
            counts = {
                stream: len(groups[0])
                for stream in wanted
                if stream in run.records[0].streams and (groups := arrange.batches_by_step(run.records[0], stream))
            }
            if counts and counts != wanted:  # one process takes more micro-batches a step, as nanoGPT does
                number = max(counts.values())
                exchanged = arrange.arrange_samples(records, arrange.one_process_placement(number))
                run = self.run(replace(plan, arrangement=exchanged), True)
        if run.error or not run.records or run.records[0].world_size != 1:
            ranks = f"it started {run.records[0].world_size} ranks" if run.records else "it took no step"
            self.notes.append(f"It was not compared with one process: it does not run as one ({run.error or ranks}).")
            return None
        found = compare.relative_deviations(run.records[0].steps[0].gradients, records[0].steps[0].gradients)
        self.deviations["one process, first step"] = max(found.values(), default=0.0)
        if self.deviations["one process, first step"] <= self.tolerance:
            return None
        return causes.find_one_process_cause(self, compare.RunDifference((found,)), run.records[0])

    # -- causes ----------------------------------------------------------------------------------------------------

    def _check_division(self) -> AuditVerdict | None:
        """Check that the loop divides the losses of micro-batches; return a verdict if it does not."""
        first = self.first_run.records[0]
        streams = arrange.shared_streams([first])
        groups = [group for stream in streams for group in arrange.batches_by_step(first, stream)]
        number = max(map(len, groups), default=1)
        for step in first.steps:
            ratios, scale = step.facts.get("ratio", []), step.facts.get("scale", [1.0])[0]
            undivided = len(ratios) == number and all(abs(ratio - 1) < 1e-6 for ratio in [*ratios, scale])
            if number > 1 and undivided:
                return self.not_exact_verdict(Cause.NOT_DIVIDED, None, f"a step's gradient is {number} times a mean's")
        return None

    # -- what is known, and verdicts ---------------------------------------------------------------------------------

    @property
    def balanced_loaders(self) -> list[dict[str, Any]]:
        """Facts about the script's balanced loaders, as the first run recorded them."""
        return list(self.first_run.records[0].facts.get("balanced", []))

    @property
    def precision(self) -> str:
        """The coarsest precision of the parameters."""
        known = self.first_run.records[0].facts.get("dtypes", ["float64"]) if self.first_run.records else ["float64"]
        return max(known, key=_rounding_tolerance)

    @property
    def tolerance(self) -> float:
        """The largest relative deviation that rounding and noise explain."""
        return max(_rounding_tolerance(self.precision), 10 * self.noise)

    def run_and_compare(self, run_name: str, plan: AuditPlan) -> tuple[compare.RunDifference | None, AuditRun]:
        run = self.run(plan, False)
        if run.error or not run.records:
            self.notes.append(f"The run with {run_name} failed: {run.error}")
            return None, run
        steps, before = (min(len(record.steps) for record in one.records) for one in (run, self.first_run))
        if steps < before:
            run = replace(run, error=f"it took {steps} steps in place of {before}")
            self.notes.append(f"The run with {run_name} failed: {run.error}.")
            return None, run
        found = compare.compare_runs(self.first_run.records, run.records)
        self.deviations[run_name] = found.largest
        return found, run

    @property
    def streams(self) -> list[str]:
        return arrange.shared_streams(self.first_run.records)

    @property
    def is_random(self) -> bool:
        """Whether random numbers were drawn that belong to no sample, or samples differ each time they are loaded."""
        draws = any(step.facts.get("draws") for record in self.first_run.records for step in record.steps)
        return draws or any(record.facts.get("random samples") for record in self.first_run.records)

    def frozen_plan(self, steps: int, **changes: Any) -> AuditPlan:
        """Return a plan of so many steps from the same parameters; two models may take turns within a step."""
        each = max(len(group) for group in arrange.steps_by_batch(self.first_run.records[0]))
        return replace(self.plan, frozen_parameters=True, steps=steps * each, **changes)

    def common_fields(self) -> dict[str, Any]:
        records = self.first_run.records
        known = {"steps": len(records[0].steps), "ranks": len(records), "precision": self.precision} if records else {}
        return known | {"noise": self.noise, "notes": tuple(self.notes), "runs": self.deviations}

    def exact_verdict(self) -> AuditVerdict:
        largest = max(self.deviations.values(), default=0.0)
        return AuditVerdict(status=AuditStatus.EXACT, deviation=largest, **self.common_fields())

    def inconclusive_verdict(self, cause: Cause, detail: str = "") -> AuditVerdict:
        return AuditVerdict(status=AuditStatus.COULD_NOT_TELL, cause=cause, detail=detail, **self.common_fields())

    def not_exact_verdict(
        self, cause: Cause, difference: compare.RunDifference | None, detail: str = ""
    ) -> AuditVerdict:
        """Return the verdict that the script is not exact, with its cause; within the noise, an inconclusive one."""
        divided = self.first_run.records[0].facts.get("trainer expects a divided loss")
        if divided and cause in (Cause.TIMES_RANKS, Cause.NOT_DIVIDED):
            cause = Cause.TRAINER
        step, name = difference.first_above(self.tolerance) if difference else (0, "")
        amount = difference.largest if difference else 0.0
        if difference and amount < 10 * self.tolerance and self.noise > 0:
            return self.inconclusive_verdict(Cause.NOISE, f"by {self.noise:.1e}, where the deviation is {amount:.1e}")
        where: dict[str, Any] = {"deviation": amount, "first_step": step, "parameter": name}
        return AuditVerdict(status=AuditStatus.NOT_EXACT, cause=cause, detail=detail, **where, **self.common_fields())


def _rounding_tolerance(precision: str) -> float:
    return {"float64": 1e-8, "float32": 1e-3}.get(precision, 3e-2)


def _dataset_checksums(records: Sequence[RankRecord]) -> list[list[int | None]]:
    """Return a checksum of each balanced loader's first samples on each rank; None where they change."""
    loaders = [[one["checksum"] for one in record.facts.get("balanced", []) if "checksum" in one] for record in records]
    return [list(ranks) for ranks in zip(*loaders, strict=False)]


def _sample_digests(records: Sequence[RankRecord]) -> list[dict[str, list[list[int]]]]:
    return [
        {name: [[one.digest for one in batch] for batch in batches] for name, batches in record.streams.items()}
        for record in records
    ]
