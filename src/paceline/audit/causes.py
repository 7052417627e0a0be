"""Causes told apart, by the runs of :mod:`paceline.audit.probe` and by how gradients scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.audit import arrange, compare, probe
from paceline.audit.audit_verdict import AuditVerdict, Cause
from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.inquiry import Inquiry
from paceline.audit.tape import Tape

Probes = tuple[probe.Probe | None, probe.Probe | None, bool]
"""What the gradients show that optimizers use, and those that backward() left; and whether the latter are summed."""


def find_cause(inquiry: Inquiry, found: compare.Difference, *, alone: bool = False) -> AuditVerdict:
    """Make the probing run, and return the verdict that it leads to."""
    shown, raw, summed = _probed(inquiry, alone=alone)
    if inquiry.random and (shown is None or shown.control > 100 * inquiry.tolerance):
        return inquiry.unknown(Cause.CHANCE)
    if shown is None:
        return inquiry.not_exact(Cause.UNKNOWN, found)
    if shown.control > 100 * inquiry.tolerance:
        return _carried(inquiry, found, shown)
    facts = inquiry.base.tapes[0].facts
    fine = 1e-5 if inquiry.precision == "float64" else 2e-2
    rows, samples = facts.get("collated", (0, 0))
    filtered = f"collate_fn leaves {rows} of {samples} samples" if rows < samples else ""
    changed = shown.residual > fine and raw is not None and raw.residual <= fine
    if changed:  # by the script itself, between backward() and step()
        assert raw is not None
        shown = raw
    if shown.residual > fine or (shown.extreme and not filtered):
        if hooks := facts.get("hooks"):
            without, _, _ = _probed(inquiry, alone=alone, hooks=False)
            if without is None:
                return inquiry.not_exact(Cause.UNKNOWN, found)
            if without.residual <= fine and not without.extreme:
                more = " and others" if len(hooks) > 1 else ""
                return inquiry.not_exact(Cause.HOOKS, found, f"by a hook on {hooks[0]}{more}")
        detail = ", ".join(facts.get("mixing", [])) or "negatives within the batch, hard examples, mixup"
        return inquiry.not_exact(Cause.ROWS, found, detail)
    if any(abs(share - shown.expected) > fine for share in shown.shares):
        return inquiry.not_exact(Cause.TERMS, found, filtered or probe.named(shown, 10 * fine))
    if abs(shown.micro_weight - 1) > fine:
        return inquiry.not_exact(
            Cause.MICRO_BATCHES, found, f"the first counts {shown.micro_weight:.3g} times its share"
        )
    if changed and not summed:
        return inquiry.not_exact(Cause.HOOKS, found, "by the script, after backward()")
    if abs(shown.rank_weight - 1) > fine:
        return inquiry.not_exact(Cause.RANKS, found, f"the first counts {shown.rank_weight:.3g} times its share")
    return _not_shown(inquiry, found, filtered)


def _carried(inquiry: Inquiry, found: compare.Difference, shown: probe.Probe) -> AuditVerdict:
    """Return the verdict on a script whose gradient of the same samples depends on the steps before."""
    first = max(found.steps[0].values(), default=0.0) if found.steps else 0.0
    if first > inquiry.tolerance:  # before anything was carried
        return inquiry.not_exact(Cause.UNKNOWN, found, "state that is carried from step to step hides it")
    same, _, _ = _probed(inquiry, steps=probe.SAME)
    largest = np.abs(shown.again).max(initial=0)
    if same is None or np.allclose(same.again, shown.again, rtol=0, atol=100 * inquiry.tolerance * largest):
        return inquiry.not_exact(
            Cause.UNKNOWN, found, "what changes from step to step hides it"
        )  # whatever the batches
    return inquiry.not_exact(Cause.CARRIED, found)


def _not_shown(inquiry: Inquiry, found: compare.Difference, filtered: str) -> AuditVerdict:
    """Return the verdict on a script of which the probing run shows nothing: by what it was seen to do."""
    tapes, close = inquiry.base.tapes, 100 * inquiry.tolerance
    clipped = [np.array([one for step in tape.steps for one in step.facts.get("clipped", [])]) for tape in tapes]
    if len({norms.shape for norms in clipped}) == 1 and clipped[0].size:
        differs = any(not np.allclose(clipped[0], norms, rtol=close) for norms in clipped)
        if differs and any((norms[:, 0] > norms[:, 1]).any() for norms in clipped):
            return inquiry.not_exact(Cause.HOOKS, found, "by clip_grad_norm_")
    for name, values in tapes[0].facts.get("not trained", {}).items():
        others = [tape.facts.get("not trained", {}).get(name, values) for tape in tapes]
        if any(len(other) == len(values) and not np.allclose(values, other, rtol=close) for other in others):
            kind = name.rpartition(" ")[0]
            return inquiry.not_exact(Cause.RANKS, found, f"parameters of a {kind} that no optimizer has differ")
    if filtered:
        return inquiry.not_exact(Cause.TERMS, found, filtered)
    return inquiry.not_exact(Cause.UNKNOWN, found)


def unlike_one(inquiry: Inquiry, found: compare.Difference, one: Tape) -> AuditVerdict:
    """Find why a step differs from that of one process although samples may be exchanged."""
    ours, theirs = (compare.flat([tape.steps[0]]) for tape in (inquiry.base.tapes[0], one))
    factor = float(ours @ theirs / (theirs @ theirs or 1))
    ranks = len(inquiry.base.tapes)
    if np.abs(ours - factor * theirs).max(initial=0) > 100 * inquiry.tolerance * np.abs(ours).max(initial=0):
        return find_cause(inquiry, found, alone=True)
    detail = f"{factor:.4g} times that of one process"
    if abs(factor - 1 / ranks) < 0.01 / ranks:
        return inquiry.not_exact(Cause.SUM, found, detail)
    return inquiry.not_exact(Cause.TIMES_RANKS if factor > 1 else Cause.UNKNOWN, found, detail)


def by_size(inquiry: Inquiry, found: compare.Difference) -> AuditVerdict:
    """Distinguish sums from unweighted means, by how a rank's weight depends on its size."""
    kind = inquiry.balanced[0]
    if inquiry.streams:
        return inquiry.not_exact(Cause.OTHER_DATA, found, ", ".join(inquiry.streams))
    shown, _, _ = _probed(inquiry)
    if shown is not None and shown.control > 100 * inquiry.tolerance:
        return inquiry.unknown(Cause.CHANCE) if inquiry.random else _carried(inquiry, found, shown)
    exponent = _size_exponent(inquiry, kind) if kind["candidates"] else None
    if exponent == 2:
        return inquiry.not_exact(Cause.SUM, found, "a rank's weight grows with the square of its batch")
    if exponent == 0:
        return inquiry.not_exact(Cause.NOT_WEIGHTED, found)
    mixing = inquiry.base.tapes[0].facts.get("mixing", [])
    return inquiry.not_exact(Cause.ROWS if mixing else Cause.UNKNOWN, found, ", ".join(mixing))


def _probed(inquiry: Inquiry, *, alone: bool = False, hooks: bool = True, steps: Sequence[str] = probe.STEPS) -> Probes:
    """Make all probing steps, as many in one run as an epoch has."""
    of, each, epoch, sizes, counts = (_of_balanced if inquiry.balanced else _of_plain)(inquiry, alone, steps)
    found: dict[str, Array] = {}
    raw: list[dict[str, Array]] = [{}, {}]  # of the first and the last rank
    many = min(max(epoch, 1), len(probe.STEPS))
    for first in range(0, len(probe.STEPS) if counts else 0, many):
        part = range(first, min(first + many, len(probe.STEPS)))
        run = inquiry.run(replace(of(part), hooks=hooks), alone)
        names = [probe.STEPS[number] for number in part]
        vectors = None if run.error or not run.tapes else probe.gradients(run.tapes[0], names, each)
        if vectors is None or not all(np.isfinite(vector).all() for vector in vectors.values()):
            return None, None, True
        found |= vectors
        for known, tape in zip(raw, (run.tapes[0], run.tapes[-1]), strict=True):
            known |= probe.gradients(tape, names, each, raw=True) or {}
    if not found:
        return None, None, True
    shown = probe.shown(found, sizes, counts)
    if any(len(vector) != len(found["own"]) for vector in raw[0].values()):
        return shown, None, True
    return shown, probe.shown(raw[0], sizes, counts), np.allclose(raw[0]["own"], raw[1].get("own", np.nan))


Probing = tuple[Callable[[range], AuditPlan], dict[str, int], int, list[list[int]], tuple[dict[str, int], ...]]
"""Plan of some probing steps, batches of each step on every stream, steps of an epoch, sizes, and counts of x, y, z."""


def _of_plain(inquiry: Inquiry, alone: bool, steps: Sequence[str]) -> Probing:
    assigned, counts = probe.probing(inquiry.base.tapes, steps)
    each = {name: len(batches) // len(probe.STEPS) for name, batches in assigned.items()}
    main = max(assigned, key=lambda name: sum(len(refs) for row in assigned[name] for refs in row))
    if alone:
        assigned = {name: [[[ref for refs in row for ref in refs]] for row in rows] for name, rows in assigned.items()}
    sizes = [[len(refs) for refs in row] for row in assigned[main][: each[main]]]
    lengths = inquiry.base.tapes[0].facts.get("lengths", {})
    known = [lengths[name] // each[name] for name in assigned if lengths.get(name) and each[name]]

    def of(numbers: range) -> AuditPlan:
        part = {name: rows[numbers.start * each[name] : numbers.stop * each[name]] for name, rows in assigned.items()}
        return inquiry.frozen(len(numbers), arranged=part)

    return of, each, min(known, default=len(probe.STEPS)), sizes, counts


def _of_balanced(inquiry: Inquiry, alone: bool, steps: Sequence[str]) -> Probing:
    kind = inquiry.balanced[0]
    ranks = int(kind["ranks"])
    numbers, counts = zip(*kind["candidates"], strict=True) if kind["candidates"] else ((), ())
    chosen = probe.distinct(counts) if len(counts) > 2 else []
    base = [numbers[place % len(numbers)] for place in range(kind["step"])] if chosen else []
    assigned = (
        probe.numbers_of(kind["step"], ranks, [numbers[place] for place in chosen], base, steps) if chosen else []
    )

    def of(part: range) -> AuditPlan:
        return inquiry.frozen(len(part), balanced=BalancedRun(numbers=assigned[part.start : part.stop]))

    sizes = [[kind["step"] // ranks] * ranks]
    return of, {}, kind["batches"], sizes, tuple(counts[place] for place in chosen)


def _size_exponent(inquiry: Inquiry, kind: dict[str, Any]) -> float | None:
    """Return the power of a rank's size that its weight follows: 1 if every sample counts the same."""
    one, other = (kind["candidates"][place][0] for place in (0, -1))
    numbers = [[one] * kind["step"], [other] * kind["step"], [one] * kind["step"], [one] * kind["step"]]
    rows = _rows(inquiry, BalancedRun(uneven=True, numbers=numbers))
    if rows is None or len(rows[3][0]) != 2 or rows[3][0][0] == rows[3][0][1]:
        return None
    first = rows[3][0][0]  # in the last step, the first rank gets the one sample and the second the other
    numbers[3] = [one] * first + [other] * (kind["step"] - first)
    mixed = _rows(inquiry, BalancedRun(uneven=True, numbers=numbers))
    if mixed is None:
        return None
    first_weight, rest, _ = probe.of_two(mixed[3][1], mixed[0][1], mixed[1][1])
    sizes = [np.array(row, float) for row, _ in mixed]
    for power in (0.0, 2.0):  # gradients of whole batches scale with their ranks' sizes too
        sums = [float((row**power).sum()) for row in sizes]
        expected = (sizes[3][0] / sizes[3][1]) ** power * sums[1] / sums[0]
        # within 1% of the expected ratio
        if rest and abs(first_weight / rest / expected - 1) < 0.01:
            return power
    return None


def _rows(inquiry: Inquiry, balanced: BalancedRun) -> list[tuple[list[int], Array]] | None:
    """Return the ranks' sizes and the gradient of four steps from the same parameters."""
    run = inquiry.run(inquiry.frozen(4, balanced=balanced), False)
    steps = arrange.grouped(run.tapes[0])[:4] if run.tapes and not run.error else []
    if len(steps) < 4:
        return None
    return [(step[0].facts["sizes"][0], compare.flat(step)) for step in steps]
