"""State of an audit under way: the script, its first run, how precise it is; and the wording of verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.audit import arrange, compare
from paceline.audit.audit_verdict import AuditStatus, AuditVerdict, Cause
from paceline.audit.comparisons import AuditPlan
from paceline.audit.tape import Tape


@dataclass(frozen=True)
class AuditRun:
    """Result of one run: the records of its ranks, the folder in which they lie, and the error if the run failed."""

    tapes: list[Tape]
    folder: str = ""
    error: str = ""


Runner = Callable[[AuditPlan, bool], AuditRun]
"""Runs the script by a plan, with all its ranks, or as one process if the second argument is true."""


@dataclass
class Inquiry:
    """An audit under way.

    Parameters
    ----------
    run
        Runs the script.
    steps
        Steps that are compared.
    notebook
        Whether one process takes the parts of all ranks, as in a notebook; then the script has no loader.
    """

    run: Runner
    steps: int = 3
    notebook: bool = False
    found: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    noise: float = 0.0
    base: AuditRun = field(default_factory=lambda: AuditRun([]))
    plan: AuditPlan = field(default_factory=AuditPlan)

    @property
    def balanced(self) -> list[dict[str, Any]]:
        """Facts about the script's balanced loaders, as the first run recorded them."""
        return list(self.base.tapes[0].facts.get("balanced", []))

    @property
    def precision(self) -> str:
        """The coarsest precision of the parameters."""
        known = self.base.tapes[0].facts.get("dtypes", ["float64"]) if self.base.tapes else ["float64"]
        return max(known, key=_rounding)

    @property
    def tolerance(self) -> float:
        """The largest relative deviation that rounding and noise explain."""
        return max(_rounding(self.precision), 10 * self.noise)

    def compared(self, name: str, plan: AuditPlan) -> tuple[compare.Difference | None, AuditRun]:
        """Run a plan and compare it with the first run."""
        run = self.run(plan, False)
        if run.error or not run.tapes:
            self.notes.append(f"The run with {name} failed: {run.error}")
            return None, run
        found = compare.difference(self.base.tapes, run.tapes)
        self.found[name] = found.largest
        return found, run

    @property
    def streams(self) -> list[str]:
        """Return the names of the streams of samples of plain loaders."""
        return arrange.shared(self.base.tapes)

    @property
    def random(self) -> bool:
        """Whether random numbers were drawn that belong to no sample, or samples differ each time they are loaded."""
        draws = any(step.facts.get("draws") for tape in self.base.tapes for step in tape.steps)
        return draws or any(tape.facts.get("random samples") for tape in self.base.tapes)

    def frozen(self, steps: int, **changes: Any) -> AuditPlan:
        """Return a plan of so many steps from the same parameters; two models may take turns within a step."""
        each = max(len(group) for group in arrange.grouped(self.base.tapes[0]))
        return replace(self.plan, frozen=True, steps=steps * each, **changes)

    def common(self) -> dict[str, Any]:
        """Return the fields that all verdicts share."""
        tapes = self.base.tapes
        known = {"steps": len(tapes[0].steps), "ranks": len(tapes), "precision": self.precision} if tapes else {}
        return known | {"noise": self.noise, "notes": tuple(self.notes), "runs": self.found}

    def exact(self) -> AuditVerdict:
        """Return the verdict that the script is exact."""
        return AuditVerdict(status=AuditStatus.EXACT, deviation=max(self.found.values(), default=0.0), **self.common())

    def unknown(self, cause: Cause, detail: str = "") -> AuditVerdict:
        """Return an inconclusive verdict, with its cause."""
        return AuditVerdict(status=AuditStatus.COULD_NOT_TELL, cause=cause, detail=detail, **self.common())

    def not_exact(self, cause: Cause, found: compare.Difference | None, detail: str = "") -> AuditVerdict:
        """Return the verdict that the script is not exact, with its cause; within the noise, an inconclusive one."""
        step, name = found.begins(self.tolerance) if found else (0, "")
        amount = found.largest if found else 0.0
        if found and amount < 10 * self.tolerance and self.noise > 0:
            return self.unknown(Cause.NOISE, f"by {self.noise:.1e}, where the deviation is {amount:.1e}")
        where: dict[str, Any] = {"deviation": amount, "first_step": step, "parameter": name}
        return AuditVerdict(status=AuditStatus.NOT_EXACT, cause=cause, detail=detail, **where, **self.common())


def _rounding(precision: str) -> float:
    """Return the relative deviation that rounding may cause."""
    return {"float64": 1e-8, "float32": 1e-3}.get(precision, 3e-2)
