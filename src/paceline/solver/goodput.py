"""The global batch of highest goodput: how many samples an iteration should take, where you are free to choose.

Axis: W workers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline.solver.deadline import BatchTimeCurves
from paceline.solver.split import Split, require_integer, split


@dataclass(frozen=True, eq=False)
class Goodput:
    """A global batch, its split, and what they achieve.

    Parameters
    ----------
    global_batch
        Samples of all workers together.
    split
        How many of them each worker gets.
    efficiency
        Training progress per sample, 1 at the reference batch.
    goodput
        Training progress per second, in samples at the reference batch: throughput times efficiency.
    """

    global_batch: int
    split: Split
    efficiency: float
    goodput: float


def best_batch(
    curves: BatchTimeCurves,
    noise_scale: float,
    *,
    smallest: int,
    largest: int,
    reference: int | None = None,
    batch_multiple: int = 1,
    lower: ArrayLike = 0,
    upper: ArrayLike | None = None,
    comm: ArrayLike = 0.0,
    overlap: float = 1.0,
) -> Goodput:
    """Choose the global batch whose best split makes the most training progress per second: the exact optimum.

    A larger batch takes less time per sample, but each of its samples teaches less. With a gradient noise scale of
    ``N`` samples (McCandlish et al. 2018, arXiv 1812.06162), a sample of a batch of ``X`` makes progress in proportion
    to ``1 / (N + X)``. Progress per sample times throughput is the goodput of Pollux (Qiao et al., OSDI 2021).

    Parameters
    ----------
    curves
        Batch time curves of the fleet, as for :func:`paceline.solver.split`.
    noise_scale
        The gradient noise scale, in samples. 0 favours the smallest batch; if it is very large, only throughput counts.
    smallest, largest
        The global batches to choose from: multiples of ``batch_multiple`` between these, both included.
    reference
        The batch at which a sample's progress counts as 1; by default the smallest. It does not change the choice.
    batch_multiple, lower, upper, comm, overlap
        As for :func:`paceline.solver.split`.

    Raises
    ------
    ValueError
        If an argument is out of range, or no batch between the two satisfies the bounds.

    Examples
    --------
    Two devices with a fixed cost of 0.1 s per step. Where gradients are noisy, a large batch pays:

    >>> from paceline.predictors import Curves
    >>> fixed, limit = np.full(2, 0.1), np.full(2, np.inf)
    >>> curves = Curves(np.zeros(2), np.array([0.001, 0.002]), fixed, limit)
    >>> for noise_scale in (100, 10_000):
    ...     best = best_batch(curves, noise_scale, smallest=32, largest=4096)
    ...     print(best.global_batch, best.split.sizes, round(best.efficiency, 2), round(best.goodput))
    123 [82 41] 0.59 400
    1224 [816 408] 0.89 1194

    Notes
    -----
    Branch and bound: ``X / (N + X)`` rises with X and the makespan never falls, so no batch from a to b is better than
    b would be in the makespan of a. Intervals are halved, the likeliest first, until none can hold a better batch.
    Of equally good batches the smallest is taken. A few dozen splits are usual. Where goodput is nearly level (no fixed
    costs, a huge noise scale) most batches are tried: set a larger batch multiple then.
    """
    first, last, step = _checked(smallest, largest, batch_multiple, noise_scale)
    first = max(first, _min_batch(curves, lower, step))
    found: dict[int, Split] = {}

    def at(batch: int) -> Split:
        if batch not in found:
            found[batch] = split(
                curves, batch, lower=lower, upper=upper, batch_multiple=step, comm=comm, overlap=overlap
            )
        return found[batch]

    last = _max_batch(curves, upper, step, last)
    if last < first:
        at(int(last) or step)  # raises the error that names the bounds that leave no room

    def useful(numerator: int, makespan: int) -> float:
        """Progress per second of one batch in the makespan of another, up to a constant factor."""
        seconds = at(makespan).makespan
        return numerator / (noise_scale + numerator) / seconds if seconds > 0 else np.inf

    # Batches enter with a minus sign, so that `max` prefers the smaller of two equally good ones.
    best = max((useful(x, x), -x) for x in (first, last))
    queue = [(-useful(last, first), first, last)]
    # raised by the rounding error, so that it never hides a better batch
    while queue and -queue[0][0] * (1 + 16 * float(np.finfo(np.float64).eps)) >= best[0]:
        _, low, high = heapq.heappop(queue)
        if high - low <= step:
            continue
        middle = low + (high - low) // (2 * step) * step
        best = max(best, (useful(middle, middle), -middle))
        for part in ((low, middle), (middle, high)):
            heapq.heappush(queue, (-useful(part[1], part[0]), *part))
    return _goodput(at(-best[1]), -best[1], noise_scale, smallest if reference is None else reference)


def _goodput(plan: Split, batch: int, noise_scale: float, reference: float) -> Goodput:
    if not reference > 0:
        raise ValueError(f"reference must be above 0 samples, got {reference}")
    efficiency = (noise_scale + reference) / (noise_scale + batch)
    throughput = batch / plan.makespan if plan.makespan > 0 else np.inf
    return Goodput(batch, plan, efficiency, efficiency * throughput)


def _checked(smallest: int, largest: int, batch_multiple: int, noise_scale: float) -> tuple[int, int, int]:
    """Return the first and the last batch to try, and the step between batches."""
    if not 0 <= noise_scale < np.inf:
        raise ValueError(f"noise_scale must be finite and not negative, in samples, got {noise_scale}")
    for name, value in (("smallest", smallest), ("largest", largest)):
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1 sample, got {value}")
    step = require_integer("batch_multiple", batch_multiple)
    first, last = -(-smallest // step) * step, largest // step * step
    if last < first:
        raise ValueError(
            f"there must be a multiple of batch_multiple {step} from smallest {smallest} to largest {largest}"
        )
    return first, last, step


def _min_batch(curves: BatchTimeCurves, lower: ArrayLike, step: int) -> int:
    """Return the fewest samples that the lower bounds allow; `split` reports a wrong bound later, with its name."""
    each = np.broadcast_to(np.nan_to_num(lower), np.shape(curves.slope))
    return int((np.ceil(each / step) * step).sum())


def _max_batch(curves: BatchTimeCurves, upper: ArrayLike | None, step: int, last: int) -> int:
    """Return the last batch, or the most samples that the upper bounds and memory limits leave room for."""
    limit = curves.limit if upper is None else np.minimum(curves.limit, upper)
    total = float((np.floor(np.asarray(limit) / step) * step).sum())
    return int(total) if total < last else last
