"""One run that tells causes apart: every step starts from the same parameters, and its batches are put together.

Let G(x) be the gradient of a step whose batches hold nothing but copies of the sample x, and G(x, y) that of a step
whose batches hold x and y in equal parts. Where rows do not see each other, G(x, y) is a sum of multiples of G(x) and
G(y); what is left over (the residual) shows batch normalization, negatives within the batch, mixup. The factors show
the rest: a mean over samples has 1/2 and 1/2, a mean over tokens the shares of x and y in the tokens. Where one rank
gets x and all others y, the factor of G(x) is how much that rank counts, and so for micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from paceline._arrays import Array
from paceline.audit.arrange import as_they_were, grouped, groups, pool, shared, sizes_of
from paceline.audit.compare import flat
from paceline.audit.comparisons import Arranged, Ref
from paceline.audit.tape import Tape

STEPS = ("own", "x", "y", "z", "xy", "xz", "rank", "micro", "own again")
"""Samples of each step of a probing run: those of the script, the sets x, y and z alone, and their mixtures."""

SAME = ("own",) * len(STEPS)
"""A run of as many steps that all hold the same."""


@dataclass(frozen=True)
class Probe:
    """Result of a probing run: how much samples, ranks and micro-batches count in its gradients.

    Parameters
    ----------
    control
        Relative deviation of two steps that hold the same.
    residual
        Part of the gradient of mixed x and y that neither explains, relative.
    shares
        The share of x in a mixture by its gradient, for the pairs x, y and x, z; NaN where it cannot be told.
    expected
        The share of x in the samples.
    rank_weight, micro_weight
        How much the first rank and the first micro-batch count, times their number: 1 if they count as all others.
    extreme
        Whether a sample counts nothing beside another although it has a gradient when alone.
    counts
        The sizes of x, y and z.
    again
        The gradient of the last step.
    """

    control: float
    residual: float
    shares: tuple[float, float]
    expected: float
    rank_weight: float
    micro_weight: float
    counts: tuple[dict[str, int], ...] = ()
    extreme: bool = False
    again: Array = field(default_factory=lambda: np.zeros(0), compare=False)


def distinct(sizes: Sequence[dict[str, int]]) -> list[int]:
    """Return three places: of the smallest, of the largest, and of one in between.

    >>> distinct([{"a": 3}, {"a": 9}, {"a": 1}, {"a": 4}])
    [2, 1, 3]
    """
    order = sorted(range(len(sizes)), key=lambda place: (sum(sizes[place].values()), place))
    rest = [place for place in order if place not in (order[0], order[-1])]
    return [order[0], order[-1], rest[len(rest) // 2] if rest else order[-1]]


def fill(step: str, micro: int, rank: int, place: int) -> int:
    """Return which of x, y and z (0, 1, 2) lies in this place of a probing step."""
    if step in ("x", "y", "z"):
        return "xyz".index(step)
    if step in ("xy", "xz"):
        return 0 if place % 2 == 0 else "xyz".index(step[1])
    return 0 if (rank if step == "rank" else micro) == 0 else 1


def probing(tapes: Sequence[Tape], steps: Sequence[str] = STEPS) -> tuple[Arranged, tuple[dict[str, int], ...]]:
    """Return the samples of a probing run, and the sizes of x, y and z; the first step is repeated in all streams."""
    streams = shared(tapes)
    main = max(streams, key=lambda stream: len(pool(*_first(tapes, stream))))
    refs = pool(*_first(tapes, main))
    known = [tapes[rank].streams[main][number][place].counts for rank, number, place in refs]
    chosen = [refs[place] for place in distinct(known)]
    found: Arranged = {}
    for stream in streams:
        group, sizes = _first(tapes, stream)
        base = as_they_were(stream, group, sizes)
        found[stream] = []
        for step in steps:
            found[stream] += base if step.startswith("own") or stream != main else _filled(step, sizes, chosen)
    return found, tuple(known[refs.index(ref)] for ref in chosen)


def _first(tapes: Sequence[Tape], stream: str) -> tuple[range, list[list[int]]]:
    group = groups(tapes[0], stream)[0]
    return group, sizes_of(tapes, stream, group)


def _filled(step: str, sizes: list[list[int]], chosen: Sequence[Ref]) -> list[list[list[Ref]]]:
    return [
        [[chosen[fill(step, micro, rank, place)] for place in range(size)] for rank, size in enumerate(row)]
        for micro, row in enumerate(sizes)
    ]


def numbers_of(
    step_size: int, ranks: int, chosen: Sequence[int], base: list[int], steps: Sequence[str] = STEPS
) -> list[list[int]]:
    """Return the numbers of the samples of a balanced loader's probing run; each rank's part is one after the other."""
    return [
        base
        if step.startswith("own")
        else [chosen[fill(step, 0, place * ranks // step_size, place)] for place in range(step_size)]
        for step in steps
    ]


def gradients(
    tape: Tape, names: Sequence[str], expected: dict[str, int], *, raw: bool = False
) -> dict[str, Array] | None:
    """Return the gradients of a probing run's steps; None if they did not take the batches that were meant for them."""
    steps = grouped(tape)[: len(names)]
    aligned = all(
        [after - before for before, after in pairwise(step[0].delivered[stream] for step in steps)]
        == [batches] * (len(steps) - 1)
        for stream, batches in expected.items()
    )
    if len(steps) < len(names) or not aligned:
        return None
    return {name: flat(steps[number], raw=raw) for number, name in enumerate(names)}


def shown(vector: dict[str, Array], sizes: list[list[int]], counts: tuple[dict[str, int], ...]) -> Probe:
    """Return what the gradients of the probing steps show."""
    base = vector["own"]
    control = float(np.abs(vector["own again"] - base).max(initial=0) / (np.abs(base).max(initial=0) or 1))
    fits = [of_two(vector["x" + other], vector["x"], vector[other]) for other in "yz"]
    batches = [size for row in sizes for size in row]
    rank, micro = (of_two(vector[name], vector["x"], vector["y"]) for name in ("rank", "micro"))
    return Probe(
        control=control,
        residual=max(fit[2] for fit in fits),
        shares=(_share(fits[0]), _share(fits[1])),
        expected=float(np.mean([(size + 1) // 2 / size for size in batches])) if min(batches) > 1 else float("nan"),
        rank_weight=rank[0] * len(sizes[0]) if len(sizes[0]) > 1 else 1.0,
        micro_weight=micro[0] * len(sizes) if len(sizes) > 1 else 1.0,
        extreme=any(
            abs(_share(fit) - 0.5) > 0.5 - 1e-9 and _both(vector["x"], vector[other])
            for fit, other in zip(fits, "yz", strict=True)
        ),
        counts=counts,
        again=vector["own again"],
    )


def _share(fit: tuple[float, float, float]) -> float:
    return fit[0] / (fit[0] + fit[1]) if fit[0] + fit[1] else float("nan")


def _both(one: Array, other: Array) -> bool:
    """Return whether neither vector is nothing beside the other."""
    lengths = np.linalg.norm(one), np.linalg.norm(other)
    return bool(min(lengths) > 1e-9 * max(lengths))


def of_two(mixture: Array, one: Array, other: Array) -> tuple[float, float, float]:
    """Return the factors of two vectors in a third, and what is left over, relative.

    If one of them is zero, its factor is what the other's lacks to 1: that of a mean.

    >>> [round(part, 3) for part in of_two(np.array([3.0, 4.0, 1.0]), np.eye(3)[0], np.eye(3)[1])]
    [3.0, 4.0, 0.196]
    >>> of_two(np.array([0.0, 0.5]), np.zeros(2), np.array([0.0, 1.0]))
    (0.5, 0.5, 0.0)
    """
    basis = np.stack([one, other], axis=1)
    factors, *_ = np.linalg.lstsq(basis, mixture, rcond=1e-10)
    rest = mixture - basis @ factors
    if not _both(one, other) and max(np.linalg.norm(one), np.linalg.norm(other)) > 0:
        zero = int(np.linalg.norm(one) > np.linalg.norm(other))
        factors[zero] = 1 - factors[1 - zero]
    return float(factors[0]), float(factors[1]), float(np.linalg.norm(rest) / (np.linalg.norm(mixture) or 1))


def named(probe: Probe, tolerance: float) -> str:
    """Return what of the samples has the ratio that the factors show, such as the labels that count."""
    if any(abs(share - 0.5) > 0.5 - 1e-9 for share in probe.shares):
        return "samples without any loss term leave the others the whole weight"
    for share, other in zip(probe.shares, probe.counts[1:], strict=True):
        if not 0 < share < 1 or abs(share - probe.expected) < tolerance:
            continue
        ratio = share / (1 - share) * (1 - probe.expected) / probe.expected
        for part, size in sorted(probe.counts[0].items(), key=lambda item: len(item[0])):
            for less in (0, 1):  # a token that predicts the next has one term less than it has tokens
                rest = other.get(part, 0) - less
                if rest > 0 and abs(ratio - (size - less) / rest) < tolerance * max(ratio, 1):
                    what = "number" if " that " in part else "size"
                    return f"it follows the {what} of {part}" + (", less one" if less else "")
        return f"samples count {ratio:.3g} : 1"
    return ""
