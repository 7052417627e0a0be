"""Causes told apart, by how gradients scale, and by one run in which every step starts from the same parameters.

Let G(x) be the gradient of a step whose batches hold nothing but copies of the sample x, and G(x, y) that of a step
whose batches hold x and y in equal parts. Where rows do not see each other, G(x, y) is a sum of multiples of G(x) and
G(y); what is left over (the residual) shows batch normalization, negatives within the batch, mixup. The factors show
the rest: a mean over samples has 1/2 and 1/2, a mean over tokens the shares of x and y in the tokens. Where one rank
gets x and all others y, the factor of G(x) is how much that rank counts, and so for micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline.audit import arrange, compare
from paceline.audit.arrange import (
    batch_sizes,
    batches_by_step,
    original_placement,
    sample_refs,
    shared_streams,
    steps_by_batch,
)
from paceline.audit.compare import flat_gradients
from paceline.audit.run import Arrangement, AuditPlan, BalancedRun, RankRecord
from paceline.audit.verdict_types import AuditVerdict, Cause

if TYPE_CHECKING:
    from paceline.audit.verdict import Audit

PROBE_STEPS = ("own", "x", "y", "z", "xy", "xz", "rank", "micro", "own again")
"""Samples of each step of a probing run: those of the script, the sets x, y and z alone, and their mixtures."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probing run: how much samples, ranks and micro-batches count in its gradients."""

    repeat_deviation: float  # relative deviation of two steps that hold the same
    mixture_residual: float  # part of the gradient of mixed x and y that neither explains, relative
    mixture_shares: tuple[float, float]  # of x in its mixtures with y and z, by their gradients; NaN if unknown
    expected_mixture_share: float  # the share of x in the samples
    # how much the first rank and the first micro-batch count, times their number: 1 if they count as all others
    first_rank_weight: float
    first_micro_batch_weight: float
    part_sizes: tuple[dict[str, int], ...]  # the sizes of x, y and z
    has_ignored_sample: bool  # a sample counts nothing beside another although it has a gradient when alone
    repeated_gradient: Array  # the gradient of the last step


def choose_probe_samples(sizes: Sequence[dict[str, int]]) -> list[int]:
    """Return three places: of the smallest, of the largest, and of one in between."""
    order = sorted(range(len(sizes)), key=lambda place: (sum(sizes[place].values()), place))
    rest = [place for place in order if place not in (order[0], order[-1])]
    return [order[0], order[-1], rest[len(rest) // 2] if rest else order[-1]]


def probe_sample_index(step_name: str, micro_batch: int, rank: int, position: int) -> int:
    """Return which of x, y and z (0, 1, 2) lies in this place of a probing step."""
    if step_name in ("x", "y", "z"):
        return "xyz".index(step_name)
    if step_name in ("xy", "xz"):
        return 0 if position % 2 == 0 else "xyz".index(step_name[1])
    return 0 if (rank if step_name == "rank" else micro_batch) == 0 else 1


def arrange_probe(
    records: Sequence[RankRecord], step_names: Sequence[str] = PROBE_STEPS
) -> tuple[Arrangement, tuple[dict[str, int], ...]]:
    """Return the samples of a probing run, and the sizes of x, y and z; the first step is repeated in all streams."""
    groups_of = {stream: batches_by_step(records[0], stream)[0] for stream in shared_streams(records)}
    firsts = {stream: (group, batch_sizes(records, stream, group)) for stream, group in groups_of.items()}
    main = max(firsts, key=lambda stream: len(sample_refs(*firsts[stream])))
    refs = sample_refs(*firsts[main])
    known = [records[rank].streams[main][number][place].part_sizes for rank, number, place in refs]
    chosen = [refs[place] for place in choose_probe_samples(known)]
    found: Arrangement = {
        stream: original_placement(stream, group, sizes) * len(step_names) for stream, (group, sizes) in firsts.items()
    }
    sizes = firsts[main][1]
    for number, step in enumerate(step_names):
        if not step.startswith("own"):
            found[main][number * len(sizes) : (number + 1) * len(sizes)] = [
                [
                    [chosen[probe_sample_index(step, micro, rank, place)] for place in range(size)]
                    for rank, size in enumerate(row)
                ]
                for micro, row in enumerate(sizes)
            ]
    return found, tuple(known[refs.index(ref)] for ref in chosen)


def probe_gradients(
    record: RankRecord, step_names: Sequence[str], expected_batches: dict[str, int], *, use_raw_gradients: bool = False
) -> dict[str, Array] | None:
    """Return the gradients of a probing run's steps; None if they did not take the batches that were meant for them."""
    steps = steps_by_batch(record)[: len(step_names)]
    delivered = [step[0].batches_delivered for step in steps]
    aligned = all(
        after[stream] - before[stream] == batches
        for before, after in pairwise(delivered)
        for stream, batches in expected_batches.items()
    )
    if len(steps) < len(step_names) or not aligned:
        return None
    gradients = [flat_gradients(step, use_raw_gradients=use_raw_gradients) for step in steps]
    return dict(zip(step_names, gradients, strict=True))


def measure_probe(
    gradient_by_step: dict[str, Array],
    sizes: list[list[int]],
    part_sizes: tuple[dict[str, int], ...],
    *,
    weight_by_size: bool,
) -> ProbeResult:
    """Return what the gradients of the probing steps show; ``weight_by_size`` if batches are to count by their size."""
    base, again, x, y = (gradient_by_step[name] for name in ("own", "own again", "x", "y"))
    control = float(np.abs(again - base).max(initial=0) / (np.abs(base).max(initial=0) or 1))
    fits = [mixture_weights(gradient_by_step["x" + other], x, gradient_by_step[other]) for other in "yz"]
    size = np.array(sizes, float)
    weight = size / size.sum() if weight_by_size else np.full_like(size, 1 / size.size)
    rank, micro = (mixture_weights(gradient_by_step[name], x, y) for name in ("rank", "micro"))
    return ProbeResult(
        repeat_deviation=control,
        mixture_residual=max(fit[2] for fit in fits),
        mixture_shares=(_share_of_first(fits[0]), _share_of_first(fits[1])),
        expected_mixture_share=float((weight * ((size + 1) // 2 / size)).sum()) if size.min() > 1 else float("nan"),
        first_rank_weight=rank[0] / weight[:, 0].sum() if size.shape[1] > 1 else 1.0,
        first_micro_batch_weight=micro[0] / weight[0].sum() if len(size) > 1 else 1.0,
        has_ignored_sample=any(
            abs(_share_of_first(fit) - 0.5) > 0.5 - 1e-9 and _have_comparable_norms(x, gradient_by_step[other])
            for fit, other in zip(fits, "yz", strict=True)
        ),
        part_sizes=part_sizes,
        repeated_gradient=again,
    )


def _share_of_first(fit: tuple[float, float, float]) -> float:
    return fit[0] / (fit[0] + fit[1]) if fit[0] + fit[1] else float("nan")


def _have_comparable_norms(first: Array, second: Array) -> bool:
    """Return whether neither vector is nothing beside the other."""
    lengths = np.linalg.norm(first), np.linalg.norm(second)
    return bool(min(lengths) > 1e-9 * max(lengths))


def mixture_weights(mixture: Array, first: Array, second: Array) -> tuple[float, float, float]:
    """Return the least-squares weights of two vectors in a mixture, and the relative residual.

    If one is zero, its weight is 1 minus the other's, as in a mean.
    """
    basis = np.stack([first, second], axis=1)
    factors, *_ = np.linalg.lstsq(basis, mixture, rcond=1e-10)
    rest = mixture - basis @ factors
    if not _have_comparable_norms(first, second) and max(np.linalg.norm(first), np.linalg.norm(second)) > 0:
        zero = int(np.linalg.norm(first) > np.linalg.norm(second))
        factors[zero] = 1 - factors[1 - zero]
    return float(factors[0]), float(factors[1]), float(np.linalg.norm(rest) / (np.linalg.norm(mixture) or 1))


def explain_shares(probe: ProbeResult, tolerance: float) -> str:
    """Return which property of the samples explains the measured weights, such as the labels that count."""
    if any(abs(share - 0.5) > 0.5 - 1e-9 for share in probe.mixture_shares):
        return "samples without any loss term leave the others the whole weight"
    for share, other in zip(probe.mixture_shares, probe.part_sizes[1:], strict=True):
        if not 0 < share < 1 or abs(share - probe.expected_mixture_share) < tolerance:
            continue
        ratio = share / (1 - share) * (1 - probe.expected_mixture_share) / probe.expected_mixture_share
        for part, size in sorted(probe.part_sizes[0].items(), key=lambda item: len(item[0])):
            for less in (0, 1):  # a token that predicts the next has one term less than it has tokens
                rest = other.get(part, 0) - less
                if rest > 0 and abs(ratio - (size - less) / rest) < tolerance * max(ratio, 1):
                    what = "number" if " that " in part else "size"
                    return f"it follows the {what} of {part}" + (", less one" if less else "")
        return f"samples count {ratio:.3g} : 1"
    return ""


ProbeOutcome = tuple[ProbeResult | None, ProbeResult | None, bool]
"""What the gradients show that optimizers use, and those that backward() left; and whether the latter are summed."""


def find_cause(audit: Audit, difference: compare.RunDifference, *, in_one_process: bool = False) -> AuditVerdict:
    """Make the probing run, and return the verdict that it leads to."""
    probe, raw, summed = _run_probes(audit, in_one_process=in_one_process)
    if audit.is_random and (probe is None or probe.repeat_deviation > 100 * audit.tolerance):
        return audit.inconclusive_verdict(Cause.CHANCE)
    if probe is None:
        return audit.not_exact_verdict(Cause.UNKNOWN, difference)
    if probe.repeat_deviation > 100 * audit.tolerance:
        return _carried_state_verdict(audit, difference, probe)
    facts = audit.first_run.records[0].facts
    fine = 1e-5 if audit.precision == "float64" else 2e-2
    rows, samples = facts.get("collated", (0, 0))
    filter_detail = f"collate_fn leaves {rows} of {samples} samples" if rows < samples else ""
    changed = probe.mixture_residual > fine and raw is not None and raw.mixture_residual <= fine
    if changed:  # by the script itself, between backward() and step()
        assert raw is not None
        probe = raw
    if probe.mixture_residual > fine or (probe.has_ignored_sample and not filter_detail):
        if hooks := facts.get("hooks"):
            without, _, _ = _run_probes(audit, in_one_process=in_one_process, hooks=False)
            if without is None:
                return audit.not_exact_verdict(Cause.UNKNOWN, difference)
            if without.mixture_residual <= fine and not without.has_ignored_sample:
                more = " and others" if len(hooks) > 1 else ""
                return audit.not_exact_verdict(Cause.HOOKS, difference, f"by a hook on {hooks[0]}{more}")
        others = "negatives within the batch, hard examples, mixup, unmasked padding"
        return audit.not_exact_verdict(Cause.ROWS, difference, ", ".join(facts.get("mixing", [])) or others)
    if len(set(_full_batch_sizes(audit))) > 1 and (by_size := _find_weighting_cause(audit, difference)) is not None:
        return by_size
    if any(abs(share - probe.expected_mixture_share) > fine for share in probe.mixture_shares):
        return audit.not_exact_verdict(Cause.TERMS, difference, filter_detail or explain_shares(probe, 10 * fine))
    first_counts = "the first counts {:.3g} times its share"
    if abs(probe.first_micro_batch_weight - 1) > fine:
        detail = first_counts.format(probe.first_micro_batch_weight)
        return audit.not_exact_verdict(Cause.MICRO_BATCHES, difference, detail)
    if changed and not summed:
        return audit.not_exact_verdict(Cause.HOOKS, difference, "by the script, after backward()")
    if abs(probe.first_rank_weight - 1) > fine:
        return audit.not_exact_verdict(Cause.RANKS, difference, first_counts.format(probe.first_rank_weight))
    return _verdict_without_probe_evidence(audit, difference, filter_detail)


def _carried_state_verdict(audit: Audit, difference: compare.RunDifference, probe: ProbeResult) -> AuditVerdict:
    """Return the verdict on a script whose gradient of the same samples depends on the steps before."""
    first = max(difference.steps[0].values(), default=0.0) if difference.steps else 0.0
    if first > audit.tolerance:  # before anything was carried
        return audit.not_exact_verdict(Cause.UNKNOWN, difference, "state that is carried from step to step hides it")
    same, _, _ = _run_probes(audit, step_names=("own",) * len(PROBE_STEPS))
    reach = 100 * audit.tolerance * np.abs(probe.repeated_gradient).max(initial=0)
    if same is None or np.allclose(same.repeated_gradient, probe.repeated_gradient, rtol=0, atol=reach):
        # it changes whatever the batches are
        return audit.not_exact_verdict(Cause.UNKNOWN, difference, "what changes from step to step hides it")
    return audit.not_exact_verdict(Cause.CARRIED, difference)


def _verdict_without_probe_evidence(
    audit: Audit, difference: compare.RunDifference, filter_detail: str
) -> AuditVerdict:
    """Return the verdict on a script of which the probing run shows nothing: by what it was seen to do."""
    records, close = audit.first_run.records, 100 * audit.tolerance
    for name, values in records[0].facts.get("not trained", {}).items():
        others = [record.facts.get("not trained", {}).get(name, values) for record in records]
        if any(len(other) == len(values) and not np.allclose(values, other, rtol=close) for other in others):
            detail = f"parameters of a {name.rpartition(' ')[0]} that no optimizer has differ"
            return audit.not_exact_verdict(Cause.RANKS, difference, detail)
    return audit.not_exact_verdict(Cause.TERMS if filter_detail else Cause.UNKNOWN, difference, filter_detail)


def find_one_process_cause(
    audit: Audit, difference: compare.RunDifference, single_process_record: RankRecord
) -> AuditVerdict:
    """Find why a step differs from that of one process although samples may be exchanged."""
    records = audit.first_run.records[0], single_process_record
    ours, theirs = (compare.flat_gradients(record.steps[:1]) for record in records)
    factor = float(ours @ theirs / (theirs @ theirs or 1))
    ranks = len(audit.first_run.records)
    if np.abs(ours - factor * theirs).max(initial=0) > 100 * audit.tolerance * np.abs(ours).max(initial=0):
        return find_cause(audit, difference, in_one_process=True)
    detail = f"{factor:.4g} times that of one process"
    if abs(factor - 1 / ranks) < 0.01 / ranks:
        return audit.not_exact_verdict(Cause.SUM, difference, detail)
    return audit.not_exact_verdict(Cause.TIMES_RANKS if factor > 1 else Cause.UNKNOWN, difference, detail)


def find_size_cause(audit: Audit, difference: compare.RunDifference) -> AuditVerdict:
    """Distinguish sums from unweighted means, by how a rank's weight depends on its size."""
    if audit.streams:
        return audit.not_exact_verdict(Cause.OTHER_DATA, difference, ", ".join(audit.streams))
    probe, _, _ = _run_probes(audit)
    if probe is not None and probe.repeat_deviation > 100 * audit.tolerance:
        if audit.is_random:
            return audit.inconclusive_verdict(Cause.CHANCE)
        return _carried_state_verdict(audit, difference, probe)
    if (by_size := _find_weighting_cause(audit, difference)) is not None:
        return by_size
    if mixing := audit.first_run.records[0].facts.get("mixing", []):
        return audit.not_exact_verdict(Cause.ROWS, difference, ", ".join(mixing))
    return audit.not_exact_verdict(Cause.UNKNOWN, difference, "it is exact with equal batches and not with uneven ones")


def _run_probes(
    audit: Audit, *, in_one_process: bool = False, hooks: bool = True, step_names: Sequence[str] = PROBE_STEPS
) -> ProbeOutcome:
    """Make all probing steps, as many in one run as an epoch has."""
    plan_for, batches_per_step, epoch, sizes, counts = (
        _plan_balanced_probe if audit.balanced_loaders else _plan_plain_probe
    )(audit, in_one_process, step_names)
    vector_by_step: dict[str, Array] = {}
    raw: list[dict[str, Array]] = [{}, {}]  # of the first and the last rank
    many = min(max(epoch, 1), len(PROBE_STEPS))
    for first in range(0, len(PROBE_STEPS) if counts else 0, many):
        step_range = range(first, min(first + many, len(PROBE_STEPS)))
        run = audit.run(replace(plan_for(step_range), hooks=hooks), in_one_process)
        names = [PROBE_STEPS[number] for number in step_range]
        vectors = None if run.error or not run.records else probe_gradients(run.records[0], names, batches_per_step)
        if vectors is None or not all(np.isfinite(vector).all() for vector in vectors.values()):
            return None, None, True
        vector_by_step |= vectors
        for known, record in zip(raw, (run.records[0], run.records[-1]), strict=True):
            known |= probe_gradients(record, names, batches_per_step, use_raw_gradients=True) or {}
    if not vector_by_step:
        return None, None, True
    by_size = bool(audit.balanced_loaders)
    probe = measure_probe(vector_by_step, sizes, counts, weight_by_size=by_size)
    if any(len(vector) != len(vector_by_step["own"]) for vector in raw[0].values()):
        return probe, None, True
    left = measure_probe(raw[0], sizes, counts, weight_by_size=by_size)
    return probe, left, np.allclose(raw[0]["own"], raw[1].get("own", np.nan))


ProbePlan = tuple[Callable[[range], AuditPlan], dict[str, int], int, list[list[int]], tuple[dict[str, int], ...]]
"""Plan of some probing steps, batches of each step on every stream, steps of an epoch, sizes, and counts of x, y, z."""


def _plan_plain_probe(audit: Audit, in_one_process: bool, step_names: Sequence[str]) -> ProbePlan:
    assigned, counts = arrange_probe(audit.first_run.records, step_names)
    batches_per_step = {name: len(batches) // len(PROBE_STEPS) for name, batches in assigned.items()}
    main = max(assigned, key=lambda name: sum(len(refs) for row in assigned[name] for refs in row))
    if in_one_process:
        assigned = {name: [[[ref for refs in row for ref in refs]] for row in rows] for name, rows in assigned.items()}
    sizes = [[len(refs) for refs in row] for row in assigned[main][: batches_per_step[main]]]
    lengths = audit.first_run.records[0].facts.get("lengths", {})
    known = [lengths[name] // batches for name, batches in batches_per_step.items() if lengths.get(name) and batches]

    def plan_for(step_range: range) -> AuditPlan:
        part = {
            name: rows[step_range.start * batches_per_step[name] : step_range.stop * batches_per_step[name]]
            for name, rows in assigned.items()
        }
        return audit.frozen_plan(len(step_range), arrangement=part)

    return plan_for, batches_per_step, min(known, default=len(PROBE_STEPS)), sizes, counts


def _plan_balanced_probe(audit: Audit, in_one_process: bool, step_names: Sequence[str]) -> ProbePlan:
    loader_facts, row = audit.balanced_loaders[0], _full_batch_sizes(audit)
    candidates = loader_facts["candidates"] if row else []
    if not candidates:
        step_names, chosen = (), []
    else:
        chosen = [candidates[place] for place in choose_probe_samples([counts for _, counts in candidates])]
    places = [
        (micro, rank, place)
        for micro in range(loader_facts["accumulate"])
        for rank, size in enumerate(row)
        for place in range(size)
    ]
    assigned = [
        [candidates[number % len(candidates)][0] for number in range(len(places))]
        if step.startswith("own")
        else [chosen[probe_sample_index(step, *place)][0] for place in places]
        for step in step_names
    ]

    def plan_for(step_range: range) -> AuditPlan:
        samples = assigned[step_range.start : step_range.stop]
        return audit.frozen_plan(len(samples), balanced=BalancedRun(step_samples=samples))

    sizes = [row] * loader_facts["accumulate"]
    return plan_for, {}, loader_facts["steps"], sizes, tuple(counts for _, counts in chosen)


def _full_batch_sizes(audit: Audit) -> list[int]:
    """Return the ranks' sizes in a full balanced batch of the first run, as equal as they can be; nothing without."""
    if not audit.balanced_loaders:
        return []
    rows = [step.facts["sizes"][0] for step in audit.first_run.records[0].steps if "sizes" in step.facts]
    return next((row for row in rows if sum(row) == audit.balanced_loaders[0]["global_batch"]), [])


def _find_weighting_cause(audit: Audit, difference: compare.RunDifference) -> AuditVerdict | None:
    """Return the verdict that ranks count by the squares of their sizes, or all the same; None if they do neither."""
    exponent = _size_exponent(audit)
    if exponent == 2:
        return audit.not_exact_verdict(Cause.SUM, difference, "a rank's weight grows with the square of its batch")
    return audit.not_exact_verdict(Cause.NOT_WEIGHTED, difference) if exponent == 0 else None


def _size_exponent(audit: Audit) -> int | None:
    """Return the power of a rank's size that its weight follows, 0, 1 or 2; None if it cannot be identified.

    Two steps hold copies of one sample each. In all others, the first rank gets the one and the other ranks the other:
    their weights then follow from their sizes, but for a factor by which the samples count differently themselves.
    """
    loader_facts = audit.balanced_loaders[0]
    candidates, total = loader_facts["candidates"], loader_facts["global_batch"]
    steps = min(loader_facts["steps"], 10)
    if len(candidates) < 3 or steps < 4:
        return None
    _, one, other = (candidates[place][0] for place in choose_probe_samples([counts for _, counts in candidates]))
    alone = [[one] * total, [other] * total]
    known = _sizes_and_gradients(audit, [*alone, *[[one] * total] * (steps - 2)])
    mixed = [[one] * row[0] + [other] * (total - row[0]) for row, _ in known[2:]]
    found = _sizes_and_gradients(audit, [*alone, *mixed]) if known else []
    if not found or len(found[0][0]) < 2:
        return None
    (_, first), (_, second) = found[:2]
    weights = [
        (row, *mixture_weights(gradient, first, second))
        for (row, gradient), (expected, _) in zip(found[2:], known[2:], strict=True)
        if row == expected  # later sizes may follow measured times
    ]
    if not weights:
        return None
    fitting = []
    for power in (0, 1, 2):
        by_size = [row[0] ** power / sum(size**power for size in row[1:]) for row, *_ in weights]
        factors = [one / (other or np.nan) / size for (_, one, other, _), size in zip(weights, by_size, strict=True)]
        if np.ptp(factors) < 0.02 * abs(np.mean(factors)):  # the same factor in all steps, within 2%
            fitting.append(power)
    return fitting[0] if len(fitting) == 1 else None


def _sizes_and_gradients(audit: Audit, batches: Sequence[list[int]]) -> list[tuple[list[int], Array]]:
    """Return the ranks' sizes and the gradient of steps of these samples; nothing if the run fails."""
    numbers = [batch * audit.balanced_loaders[0]["accumulate"] for batch in batches]
    plan = audit.frozen_plan(len(numbers), balanced=BalancedRun(uneven_sizes=True, step_samples=numbers))
    run = audit.run(plan, False)
    steps = arrange.steps_by_batch(run.records[0])[: len(numbers)] if run.records and not run.error else []
    if len(steps) < len(numbers):
        return []
    return [(step[0].facts["sizes"][0], compare.flat_gradients(step)) for step in steps]
