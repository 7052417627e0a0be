"""`split` says which argument is wrong, what it expected, what came, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.predictors import Curves
from paceline.solver import split

CURVES = Curves.from_speed(np.array([100.0, 200.0, 300.0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 510, "batch_multiple": 8}, r"multiple of batch_multiple 8, got 510: pass 504 or 512"),
        ({"global_batch": 5, "batch_multiple": 8}, r"got 5: pass 8"),
        ({"global_batch": 0}, r"global_batch must be at least 1 sample, got 0"),
        ({"global_batch": 2**53 + 1}, r"global_batch must be at most 2\*\*53"),
        ({"global_batch": 2**53}, r"global_batch must be at most 2\*\*53 / . batch multiples for . workers"),
        ({"batch_multiple": 0}, r"batch_multiple must be at least 1 sample, got 0"),
        ({"lower": -1}, r"lower must be finite and not negative, got -1.0 for worker 0"),
        ({"lower": [0, np.nan, 0]}, r"lower must be finite and not negative, got nan for worker 1"),
        ({"lower": [1, 1]}, r"lower must hold one number for each of the 3 workers, got the shape \(2,\)"),
        ({"lower": 200}, r"lower bounds sum to 600, more than the global_batch 512"),
        ({"lower": 161, "batch_multiple": 16}, r"rounded inward to multiples of 16, sum to 528, more than .* 512"),
        ({"upper": 100}, r"upper bounds and memory limits sum to 300, less than the global_batch 512"),
        ({"upper": [np.nan, 9, 9]}, r"upper must not be NaN or negative, .* got nan for worker 0"),
        ({"lower": [9, 0, 0], "upper": [8, 512, 512]}, r"worker 0 must take at least 9 .* and at most 8"),
        ({"comm": [0, 0, np.inf]}, r"comm must be finite and not negative, got inf for worker 2"),
        ({"comm": np.zeros((3, 1))}, r"comm must hold one number .* got the shape \(3, 1\)"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(CURVES, **{"global_batch": 512, **arguments})


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("slope", [1.0, np.inf, 1.0], r"curves.slope .* got inf for worker 1; .* with upper=0"),
        ("slope", [1.0, -1.0, 1.0], r"curves.slope must be finite and not negative, got -1.0 for worker 1"),
        ("floor", [np.nan, 0.0, 0.0], r"curves.floor must be finite and not negative, got nan for worker 0"),
        ("floor", [0.0], r"curves.floor must hold one number for each of the 3 workers, got the shape \(1,\)"),
        ("intercept", [0.0, 0.0, -np.inf], r"curves.intercept must be finite, got -inf for worker 2"),
        ("limit", [np.nan, 9.0, 9.0], r"curves.limit must not be NaN or negative, .* got nan for worker 0"),
        ("limit", [9.0, 9.0, 9.0], r"memory limits sum to 27, less than the global_batch 512"),
    ],
)
def test_wrong_curve_is_named_with_its_worker(column: str, values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(replace(CURVES, **{column: np.array(values)}), 512)


@pytest.mark.parametrize(("name", "value"), [("global_batch", 512.0), ("batch_multiple", "8")])
def test_samples_must_be_whole(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a whole number of samples, got {value!r}"):
        split(CURVES, **{"global_batch": 512, name: value})  # type: ignore[arg-type]


def test_bounds_are_rounded_inward() -> None:
    assert split(CURVES, 48, lower=[9, 0, 0], upper=[48, 15, 48], batch_multiple=8).sizes.tolist() == [16, 8, 24]


def test_arguments_are_not_changed() -> None:
    lower, slope = np.array([9.0, 0.0, 0.0]), CURVES.slope.copy()
    split(CURVES, 512, lower=lower, batch_multiple=8)
    assert lower.tolist() == [9.0, 0.0, 0.0]
    np.testing.assert_array_equal(CURVES.slope, slope)


@pytest.mark.parametrize("wrong", [["a"], [100, 0], [], "auto", [1.0, float("nan")]])
def test_wrong_speeds_are_refused(wrong):
    with pytest.raises(ValueError, match="one speed above 0 for each worker"):
        split(wrong, 512)
