"""Runs compared: the largest relative deviation of gradients and parameters, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array
from paceline.audit.run import Arrays, RankRecord, StepRecord


@dataclass(frozen=True)
class Difference:
    """Relative deviations of two runs, of every step, by the names of parameters: gradients, then parameters."""

    steps: tuple[dict[str, float], ...]

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max((amount for step in self.steps for amount in step.values()), default=0.0)

    def first_above(self, tolerance: float) -> tuple[int, str]:
        """Return the first step that deviates by more, and the first parameter that does."""
        for number, step in enumerate(self.steps):
            for name, amount in step.items():
                if amount > tolerance:
                    return number, name
        return 0, ""


def compare_runs(expected: Sequence[RankRecord], actual: Sequence[RankRecord]) -> Difference:
    """Compare two runs rank by rank, step by step."""
    steps = []
    for number in range(min(len(record.steps) for record in [*expected, *actual])):
        pairs = zip(expected, actual, strict=True)
        steps.append(
            largest_deviations([step_deviations(one, one.steps[number], other.steps[number]) for one, other in pairs])
        )
    return Difference(tuple(steps))


def step_deviations(record: RankRecord, one: StepRecord, other: StepRecord) -> dict[str, float]:
    """Return the relative deviations of one step: of gradients, and of how far parameters moved."""
    moved, others = (
        {
            name: after - record.start[name]
            for name, after in step.parameters.items()
            if name in record.start and record.start[name].shape == after.shape
        }
        for step in (one, other)
    )
    longest = max((size(array) for array in moved.values()), default=0.0)
    gradients = relative_deviations(one.gradients, other.gradients)
    if not all(array.dtype == np.float64 for array in moved.values()):
        return gradients  # a step's rounding is as large as the step, so parameters say nothing that gradients do not
    # Where a gradient is zero but for rounding, as at an attention's key bias, Adam moves by whole steps all the same.
    least = 1e-11 * max((size(array) for array in one.gradients.values()), default=0.0)
    counted = {name: (np.abs(array) >= least) | (array == 0) for name, array in one.gradients.items()}
    parameters = {
        name: distance(array * counted.get(name, True), others[name] * counted.get(name, True)) / (longest or 1.0)
        for name, array in moved.items()
        if name in others
    }
    return {name: max(gradients.get(name, 0.0), parameters.get(name, 0.0)) for name in {**gradients, **parameters}}


def relative_deviations(expected: Arrays, actual: Arrays) -> dict[str, float]:
    """Return by how much arrays deviate, relative to the largest value of each."""
    overall = max((size(array) for array in expected.values()), default=0.0)
    # relative to the parameter's largest gradient, or to 0.1% of the largest of all
    scales = {name: max(size(array), 1e-3 * overall) or 1.0 for name, array in expected.items()}
    return {name: distance(expected[name], actual[name]) / scales[name] for name in expected if name in actual}


def size(array: Array) -> float:
    """Return the largest absolute value."""
    return float(np.abs(array).max(initial=0.0))


def distance(one: Array, other: Array) -> float:
    """Return the largest distance between two arrays; infinite where one holds NaN."""
    if one.shape != other.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):  # two infinite values, of which not_a_number tells
        largest = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))
    if np.isnan(largest):
        return 0.0 if np.array_equal(one, other, equal_nan=True) else float("inf")
    return largest


def ranks_differ(records: Sequence[RankRecord]) -> Difference:
    """Return how far the ranks' gradients are from each other, relative to the first rank's."""
    first, *others = records
    steps = []
    for number, step in enumerate(first.steps):
        there = [record.steps[number].gradients for record in others if number < len(record.steps)]
        steps.append(largest_deviations([relative_deviations(step.gradients, gradients) for gradients in there]))
    return Difference(tuple(steps))


def largest_deviations(deviations: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the largest deviation of each parameter."""
    names = dict.fromkeys(name for amounts in deviations for name in amounts)
    return {name: max(amounts[name] for amounts in deviations if name in amounts) for name in names}


def largest_deviation(parameters: Sequence[Arrays]) -> float:
    """Return how far the ranks' parameters are from the first rank's."""
    first, *others = parameters
    return max((amount for other in others for amount in relative_deviations(first, other).values()), default=0.0)


def flat_gradients(steps: Sequence[StepRecord], *, use_raw: bool = False) -> Array:
    """Return the gradients of some steps as one vector."""
    arrays = [
        array.astype(np.float64) for step in steps for array in (step.raw if use_raw else step.gradients).values()
    ]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def find_nonfinite(records: Sequence[RankRecord]) -> Difference | None:
    """Return where gradients are not numbers; None if all are."""
    steps = [
        {name: float("inf") for name, array in step.gradients.items() if not np.isfinite(array).all()}
        for step in records[0].steps
    ]
    return Difference(tuple(steps)) if any(steps) else None
