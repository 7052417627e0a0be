"""How well samples of unequal length are packed into micro-batches of ranks: ours against the rules of other projects.

Run as ``python benchmarks/pack.py``; it writes pack.md beside this file. ``--quick`` prints a part. The rules were
written after the projects' descriptions, and all are given the same costs and the same cap; nothing is copied, and none
of them is told speeds, which none can take. Axes: N samples, W ranks.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread for everybody: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray
from work import functions, karmarkar_karp

from paceline.solver import TokenCost, pack

Array = NDArray[np.float64]
Plan = list[list[list[int]]]
"""Samples of each micro-batch of each rank."""

Rule = Callable[[Array, int], Plan]

QUICK = "--quick" in sys.argv
DRAWS = 2 if QUICK else 4
TIE = 1e-3
"""Times that differ by less, relatively, count as equal: the forecast of a speed errs by far more."""

CAP = 8192
COST = TokenCost(token=1.0, square=1 / CAP, micro_batch=200.0)
"""At the cap, attention costs as much as all linear layers; a micro-batch costs as much as 200 tokens."""


def _clipped(length_N: Array) -> Array:
    return np.clip(np.ceil(length_N), 16, CAP)


LENGTHS: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "short answers": lambda count, chance: _clipped(chance.lognormal(math.log(220), 0.45, count)),
    "chat": lambda count, chance: _clipped(chance.lognormal(math.log(600), 1.0, count)),
    "rollouts": lambda count, chance: _clipped(400 + chance.gamma(1.3, 2300, count)),
    "documents": lambda count, chance: _clipped(64 * (1 + chance.pareto(1.1, count))),
    "source code": lambda count, chance: _clipped(chance.choice(functions(), count)),
}
SPEEDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "8 equal": lambda chance: np.ones(8),
    "8 mixed": lambda chance: np.array([1, 1, 1, 1, 0.8, 0.8, 0.5, 0.5]),
    "8, one at half": lambda chance: np.array([1.0] * 7 + [0.5]),
    "64 random": lambda chance: chance.uniform(0.6, 1, 64),
}


# The rules of others.


def verl(length_N: Array, ranks: int) -> Plan:
    """Balance whole ranks by Karmarkar-Karp with equally many samples, then each rank's micro-batches by it.

    All ranks have as many micro-batches as the one that needs most; where a part exceeds the cap, one more.
    """
    cost_N = COST(length_N)
    own = [np.array(sorted(part)) for part in karmarkar_karp(cost_N, ranks, equal_size=True)]
    count = max(math.ceil(length_N[part].sum() / CAP) for part in own)
    while True:
        plan = [[part[group].tolist() for group in map(np.array, karmarkar_karp(cost_N[part], count))] for part in own]
        if all(length_N[group].sum() <= CAP for groups in plan for group in groups):
            return plan
        count += 1


def first_fit_decreasing(length_N: Array) -> list[list[int]]:
    bins: list[list[int]] = []
    room = np.zeros(len(length_N))
    for sample in np.argsort(-length_N, kind="stable").tolist():
        fits = np.flatnonzero(room[: len(bins)] >= length_N[sample])
        if not len(fits):
            room[len(bins)] = CAP
            bins.append([])
        place = int(fits[0]) if len(fits) else len(bins) - 1
        bins[place].append(sample)
        room[place] -= length_N[sample]
    return bins


def _expanded(bins: list[list[int]], cost_N: Array, multiple: int) -> list[list[int]]:
    """Halve the most expensive micro-batches until their number is a multiple of the ranks."""
    while len(bins) % multiple:
        heaviest = max(range(len(bins)), key=lambda place: cost_N[bins[place]].sum() if len(bins[place]) > 1 else -1.0)
        order = sorted(bins.pop(heaviest), key=lambda sample: -cost_N[sample])
        halves: tuple[list[int], list[int]] = ([], [])
        for sample in order:
            min(halves, key=lambda half: cost_N[half].sum()).append(sample)
        bins += list(halves)
    return bins


def prime_rl(length_N: Array, ranks: int) -> Plan:
    """First fit decreasing; the heaviest halved to a multiple of the ranks; Karmarkar-Karp over them, and swaps."""
    cost_N = COST(length_N)
    bins = _expanded(first_fit_decreasing(length_N), cost_N, ranks)
    weight = np.array([cost_N[own].sum() for own in bins])
    parts = karmarkar_karp(weight, ranks, equal_size=True)
    for _ in range(100):  # swap two micro-batches of the most and the least loaded rank while that helps
        load = np.array([weight[part].sum() for part in parts])
        high, low = int(load.argmax()), int(load.argmin())
        moved = weight[parts[high]][:, None] - weight[parts[low]]
        after = np.maximum(load[high] - moved, load[low] + moved)
        give, take = np.unravel_index(after.argmin(), after.shape)
        if after[give, take] >= load[high]:
            break
        parts[high][give], parts[low][take] = parts[low][take], parts[high][give]
    return [[bins[place] for place in part] for part in parts]


def first_fit_round_robin(length_N: Array, ranks: int) -> Plan:
    """First fit decreasing; rank r has every W-th micro-batch, and an empty one where they do not come out even."""
    bins = first_fit_decreasing(length_N)
    bins += [[] for _ in range(-len(bins) % ranks)]
    return [bins[rank::ranks] for rank in range(ranks)]


def megatron(length_N: Array, ranks: int) -> Plan:
    """Next fit in the order of the samples; the heaviest halved to a multiple of the ranks; given out in turn."""
    bins = _expanded(_next_fit(length_N, range(len(length_N))), COST(length_N), ranks)
    return [bins[rank::ranks] for rank in range(ranks)]


def _next_fit(length_N: Array, order: range | list[int]) -> list[list[int]]:
    bins: list[list[int]] = [[]]
    for sample in order:
        if length_N[bins[-1]].sum() + length_N[sample] > CAP:
            bins.append([])
        bins[-1].append(sample)
    return bins


def group_by_length(length_N: Array, ranks: int) -> Plan:
    """Sort by length, give samples to ranks in turn, fill micro-batches in that order; empty ones even out."""
    order = np.argsort(-length_N, kind="stable").tolist()
    return _alike_in_number([_next_fit(length_N, order[rank::ranks]) for rank in range(ranks)])


def _alike_in_number(plan: Plan) -> Plan:
    count = max(map(len, plan))
    return [own + [[] for _ in range(count - len(own))] for own in plan]


def _padded_next_fit(length_N: Array, order: list[int]) -> list[list[int]]:
    bins: list[list[int]] = [[]]
    for sample in order:
        if bins[-1] and length_N[bins[-1][0]] * (len(bins[-1]) + 1) > CAP:
            bins.append([])
        bins[-1].append(sample)
    return bins


def group_by_length_padded(length_N: Array, ranks: int) -> Plan:
    order = np.argsort(-length_N, kind="stable").tolist()
    return _alike_in_number([_padded_next_fit(length_N, order[rank::ranks]) for rank in range(ranks)])


def batch_rebalance(length_N: Array, ranks: int) -> Plan:
    """Cut the sorted samples contiguously into groups of equal padded cost, as few for each rank as the cap allows.

    The cost to which groups may go is found by bisection. Ranks take them in turn.
    """
    order = np.argsort(-length_N, kind="stable")
    sorted_N, cost_N = length_N[order], COST(length_N[order])

    def cut(most: float) -> list[list[int]]:
        groups, first = [], 0
        while first < len(order):
            size = max(1, int(min(most / cost_N[first], CAP // sorted_N[first])))
            groups.append(order[first : first + size].tolist())
            first += size
        return groups

    target = ranks * math.ceil(len(cut(np.inf)) / ranks)
    low, high = float(cost_N[0]), float(cost_N.sum())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if len(cut(middle)) <= target else (middle, high)
    groups = cut(high) if len(cut(high)) <= target else cut(np.inf)
    groups = [*groups, *([] for _ in range(target - len(groups)))]
    return [groups[rank::ranks] for rank in range(ranks)]


PACKED: dict[str, Rule] = {
    "verl": verl,
    "prime-rl": prime_rl,
    "first-fit": first_fit_round_robin,
    "Megatron": megatron,
    "group_by_length": group_by_length,
}
PADDED: dict[str, Rule] = {"batch_rebalance": batch_rebalance, "group_by_length": group_by_length_padded}


# Judged apart from the solver.


def seconds(length_N: Array, plan: Plan, speed_W: Array, *, padded: bool, lockstep: bool = False) -> float:
    """Return when the last rank ends, or all of them if they wait after every micro-batch."""
    table = np.zeros((len(plan), max(map(len, plan))))
    for rank, groups in enumerate(plan):
        for place, group in enumerate(groups):
            own = length_N[group]
            own = np.full(len(own), own.max(initial=0.0)) if padded else own
            if own.sum() > CAP:
                raise AssertionError("a micro-batch exceeds the cap")
            table[rank, place] = (COST(own).sum() + COST.micro_batch) / speed_W[rank]
    if lockstep:  # each rank may order its own as it likes: like with like is best
        return float(np.sort(table, axis=1).max(axis=0).sum())
    return float(table.sum(axis=1).max())


def ours(length_N: Array, speed_W: Array, micro_batches: str | None, *, padded: bool) -> tuple[Plan, float]:
    packing = pack(length_N, cap=CAP, speeds=speed_W, micro_batches=micro_batches, cost=COST, padded=padded)
    return [[own.tolist() for own in packing.samples_of(rank)] for rank in range(len(speed_W))], packing.lower_bound


MISSED: list[str] = []
"""Where another rule is ahead by more than a tie, or gaps exceed their target; filled while tables are made."""


def compared(*, padded: bool, lockstep: bool = False) -> Iterator[str]:
    """Yield the table of times over the lower bound of equal counts: means over the draws, and the largest of ours."""
    rules = PADDED if padded else PACKED
    last = "ours, at most" if lockstep else "ours, free counts"
    yield f"| lengths | ranks | {' | '.join(rules)} | ours | {last} |"
    yield "| --- " * (4 + len(rules)) + "|"
    for name, draw in LENGTHS.items():
        for kind, speeds in SPEEDS.items():
            over: dict[str, list[float]] = {rule: [] for rule in (*rules, "ours", last)}
            for seed in range(DRAWS):
                chance = np.random.default_rng(seed)
                speed_W = speeds(chance)
                length_N = draw(64 * len(speed_W), chance)
                plan, bound = ours(length_N, speed_W, "lockstep" if lockstep else "equal", padded=padded)
                judged = {rule: made(length_N, len(speed_W)) for rule, made in rules.items()} | {"ours": plan}
                for rule, one in judged.items():
                    end = seconds(length_N, one, speed_W, padded=padded, lockstep=lockstep)
                    over[rule].append(end / bound)
                if lockstep:
                    over[last].append(over["ours"][-1])
                else:
                    free, lowest = ours(length_N, speed_W, None, padded=padded)
                    over[last].append(seconds(length_N, free, speed_W, padded=padded) / lowest)
                ahead = [rule for rule in rules if over[rule][-1] < over["ours"][-1] * (1 - TIE)]
                waits = ", if ranks wait every time" if lockstep else ""
                MISSED.extend(f"{rule} is ahead on {name}, {kind}, draw {seed}{waits}" for rule in ahead)
            mean = {rule: float(np.mean(over[rule])) for rule in (*rules, "ours")}
            means = [f"{value:.3f}" for value in mean.values()]
            end = np.max(over[last]) if lockstep else np.mean(over[last])
            yield f"| {name} | {kind} | {' | '.join(means)} | {end:.3f} |"


def gaps() -> Iterator[str]:
    """Yield how far ours is from its bound, at two sizes."""
    yield "| samples | ranks | counts | gap: median | at most | within target | plan: median | at most |"
    yield "| --- " * 8 + "|"
    for samples, kinds, target, share in (
        (512, ("8 equal", "8 mixed", "8, one at half"), 0.005, 1.0),
        (4096, ("256 random",), 0.02, 0.9),
    ):
        for mode in (None, "equal"):
            gap, taken = [], []
            for seed in range(DRAWS):
                for draw in LENGTHS.values():
                    for kind in kinds:
                        chance = np.random.default_rng(seed)
                        speed_W = chance.uniform(0.6, 1, 256) if kind == "256 random" else SPEEDS[kind](chance)
                        length_N = draw(samples, chance)
                        began = time.process_time()
                        packing = pack(length_N, cap=CAP, speeds=speed_W, micro_batches=mode, cost=COST)
                        taken.append(1e3 * (time.process_time() - began))
                        gap.append(packing.gap)
            within = int(np.sum(np.array(gap) <= target))
            if within < share * len(gap):
                MISSED.append(
                    f"{within} of {len(gap)} gaps within {target:.1%} at {samples:,} samples, {mode or 'free'}"
                )
            yield (
                f"| {samples:,} | {kinds[0].split()[0]} | {mode or 'free'} | {np.median(gap):.2%} | {max(gap):.2%} | "
                f"{within} of {len(gap)} within {target:.1%} | {np.median(taken):.0f} ms | {max(taken):.0f} ms |"
            )


def report() -> Iterator[str]:
    packed, lockstep = list(compared(padded=False)), list(compared(padded=False, lockstep=True))
    padded, bounds = list(compared(padded=True)), list(gaps())
    yield "# Packing samples into micro-batches\n"
    if MISSED:
        yield f"**Missed**: {'; '.join(MISSED)}.\n"
    yield "Command: `python benchmarks/pack.py`\n"
    yield f"Machine: {machine()}; one thread; other work ran on it, so times are of the processor.\n"
    cap, own, n = f"{CAP:,}", f"{COST.micro_batch:g}", DRAWS
    yield f"""\
A micro-batch holds at most {cap} tokens. A sample of n tokens costs n + n^2 / {cap}, a micro-batch {own} more. A global
batch has 64 samples a rank; means over {n} draws. Every figure is the time of the step over a lower bound, which knows
the speeds: 1.000 cannot be beaten. The bound is for equal numbers of micro-batches on all ranks, which all other rules
make; free counts have a bound of their own. Times that differ by less than {TIE:.1%} count as equal.

Lengths are drawn to resemble kinds of data sets; only the last reads real texts. *Short answers*: log-normal around 220
(sigma .45). *Chat*: log-normal around 600 (sigma 1). *Rollouts*: 400 plus a gamma of mean 2,990 (shape 1.3), cut at the
cap as generation would be. *Documents*: Pareto (alpha 1.1) from 64. *Source code*: the functions of Python's own
library, in words. *Random* speeds lie evenly between .6 and 1.

The others' rules are written by us after their descriptions: verl's two levels of Karmarkar-Karp; prime-rl's first fit,
halving, Karmarkar-Karp and swaps; first fit decreasing, given out in turn; Megatron's next fit in the order of the
data; lengths sorted and given out in turn; and, padded, transformers' `batch_rebalance`. All of them know the true
costs; none takes speeds.
"""
    yield "## Time of the slowest rank\n"
    yield from packed
    yield "\n## Ranks that wait after every micro-batch\n"
    yield """\
As FSDP's all-gathers make them: the sum of the longest of each round of micro-batches, each rank's in falling order.
Ours is `micro_batches="lockstep"`, which aims at it; none of the others does. The bound is the same, so it is not tight
here.
"""
    yield from lockstep
    yield "\n## Padded micro-batches\n"
    yield from padded
    yield "\n## Gap to the bound, and time to plan\n"
    yield from bounds


if __name__ == "__main__":
    text = []
    for row in report():
        print(row, flush=True)
        text.append(row)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
