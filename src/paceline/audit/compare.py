"""Runs compared: the largest relative deviation of gradients and parameters, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array
from paceline.audit.run import Arrays, RankRecord, StepRecord


@dataclass(frozen=True)
class RunDifference:
    """Relative deviations of two runs, of every step, by the names of parameters: gradients, then parameters."""

    steps: tuple[dict[str, float], ...]

    @property
    def largest(self) -> float:
        return max((amount for step in self.steps for amount in step.values()), default=0.0)

    def first_above(self, tolerance: float) -> tuple[int, str]:
        """Return the first step that deviates by more, and the first parameter that does."""
        for number, step in enumerate(self.steps):
            for name, amount in step.items():
                if amount > tolerance:
                    return number, name
        return 0, ""


def compare_runs(expected: Sequence[RankRecord], actual: Sequence[RankRecord]) -> RunDifference:
    steps = []
    for number in range(min(len(record.steps) for record in [*expected, *actual])):
        pairs = zip(expected, actual, strict=True)
        found = [step_deviations(one, one.steps[number], other.steps[number]) for one, other in pairs]
        steps.append(max_deviation_by_parameter(found))
    return RunDifference(tuple(steps))


def step_deviations(record: RankRecord, expected_step: StepRecord, actual_step: StepRecord) -> dict[str, float]:
    """Return the relative deviations of one step: of gradients, and of how far parameters moved."""
    moved, others = (
        {
            name: after - record.initial_parameters[name]
            for name, after in step.parameters.items()
            if name in record.initial_parameters and record.initial_parameters[name].shape == after.shape
        }
        for step in (expected_step, actual_step)
    )
    longest = max((max_abs(array) for array in moved.values()), default=0.0)
    gradients = relative_deviations(expected_step.gradients, actual_step.gradients)
    if not all(array.dtype == np.float64 for array in moved.values()):
        return gradients  # a step's rounding is as large as the step, so parameters say nothing that gradients do not
    # Where a gradient is zero but for rounding, as at an attention's key bias, Adam moves by whole steps all the same.
    min_size = 1e-11 * max((max_abs(array) for array in expected_step.gradients.values()), default=0.0)
    counted = {name: (np.abs(array) >= min_size) | (array == 0) for name, array in expected_step.gradients.items()}
    parameters = {
        name: max_abs_difference(array * counted.get(name, True), others[name] * counted.get(name, True))
        / (longest or 1.0)
        for name, array in moved.items()
        if name in others
    }
    return {name: max(gradients.get(name, 0.0), parameters.get(name, 0.0)) for name in {**gradients, **parameters}}


def relative_deviations(expected: Arrays, actual: Arrays) -> dict[str, float]:
    """Return by how much arrays deviate, relative to the largest value of each."""
    overall = max((max_abs(array) for array in expected.values()), default=0.0)
    # relative to the parameter's largest gradient, or to 0.1% of the largest of all
    scales = {name: max(max_abs(array), 1e-3 * overall) or 1.0 for name, array in expected.items()}
    return {
        name: max_abs_difference(expected[name], actual[name]) / scales[name] for name in expected if name in actual
    }


def max_abs(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def max_abs_difference(first: Array, second: Array) -> float:
    """Return the largest distance between two arrays; infinite where one holds NaN."""
    if first.shape != second.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):  # two infinite values, of which not_a_number tells
        largest = float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max(initial=0.0))
    if np.isnan(largest):
        return 0.0 if np.array_equal(first, second, equal_nan=True) else float("inf")
    return largest


def compare_ranks(records: Sequence[RankRecord]) -> RunDifference:
    """Return how far the ranks' gradients are from each other, relative to the first rank's."""
    first, *others = records
    steps = []
    for number, step in enumerate(first.steps):
        there = [record.steps[number].gradients for record in others if number < len(record.steps)]
        found = [relative_deviations(step.gradients, gradients) for gradients in there]
        steps.append(max_deviation_by_parameter(found))
    return RunDifference(tuple(steps))


def max_deviation_by_parameter(deviations: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for amounts in deviations for name in amounts)
    return {name: max(amounts[name] for amounts in deviations if name in amounts) for name in names}


def max_rank_deviation(parameters_by_rank: Sequence[Arrays]) -> float:
    """Return how far the ranks' parameters are from the first rank's."""
    first, *others = parameters_by_rank
    return max((amount for other in others for amount in relative_deviations(first, other).values()), default=0.0)


def flat_gradients(steps: Sequence[StepRecord], *, use_raw_gradients: bool = False) -> Array:
    found = [step.raw_gradients if use_raw_gradients else step.gradients for step in steps]
    return np.concatenate([np.zeros(0), *(array for arrays in found for array in arrays.values())])


def find_nonfinite(records: Sequence[RankRecord]) -> RunDifference | None:
    """Return where gradients are not numbers; None if all are."""
    steps = [
        {name: float("inf") for name, array in step.gradients.items() if not np.isfinite(array).all()}
        for step in records[0].steps
    ]
    return RunDifference(tuple(steps)) if any(steps) else None
