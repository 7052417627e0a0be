"""Bounds of sizes: those of the policy, less what memory was found to hold, worker by worker."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced.limits import Bounds, Limits, require_covariates
from paceline.predictors import EWMA, RLS, Curves, Forecast, Report

rows = st.lists(
    st.tuples(
        st.none() | st.integers(0, 20),
        st.none() | st.integers(20, 90),
        st.sampled_from([0.0, 1.0, 1.0, np.nan]),
        st.sampled_from([np.nan, np.inf, 0.0, -3.0, 1.0, 17.0, 40.0, 64.0]),
        st.sampled_from([np.inf, 17.0, 39.9, 40.0, 64.0]),
    ),
    min_size=1,
    max_size=6,
)


def limits_of(lower, upper, multiple, share):
    """Return limits, their global batch somewhere between all lower bounds and all upper ones, and the bounds."""
    workers = [f"w{i}" for i in range(len(lower))]
    low = [-(-(1 if bound is None else bound) // multiple) * multiple for bound in lower]
    most = [(120 if bound is None else bound) // multiple * multiple for bound in upper]
    batch = sum(low) + int(share * (sum(most) - sum(low)) / multiple) * multiple
    assume(batch > 0)
    named = [{w: b for w, b in zip(workers, bounds, strict=True) if b is not None} for bounds in (lower, upper)]
    policy = Policy(batch_multiple=multiple, lower=named[0], upper=named[1])
    high = [batch if bound is None else min(bound, batch) // multiple * multiple for bound in upper]
    return Limits.of(policy, workers, batch), batch, low, high


@settings(max_examples=60)
@given(rows, st.sampled_from([1, 4]), st.floats(0, 1), st.booleans())
def test_every_worker_is_bounded_by_policy_and_memory_unless_that_leaves_no_room(rows, multiple, share, has_curves):
    lower, upper, flags, samples, limit = map(list, zip(*rows, strict=True))
    limits, batch, low, high = limits_of(lower, upper, multiple, share)
    assert (limits.lower.tolist(), limits.upper.tolist()) == (low, high)
    sizes, count = limits.equal, len(rows)
    limit = limit if has_curves else [np.inf] * count
    curves = Curves(np.zeros(count), np.ones(count), np.zeros(count), np.array(limit))
    forecast = Forecast(np.ones(count), np.ones(count), batch_time=curves if has_curves else None)
    memory = [np.inf] * count
    for _ in range(2):
        limits = limits.after(Report(samples, [1.0] * count, out_of_memory=flags), sizes, forecast)
        held = [n if 0 < n < np.inf else size for n, size in zip(samples, sizes.tolist(), strict=True)]
        shrunk = [flag == 1 and not most < n for flag, most, n in zip(flags, limit, held, strict=True)]
        memory = [min(m, 0.8 * n) if is_less else m for m, n, is_less in zip(memory, held, shrunk, strict=True)]
        assert limits.memory.tolist() == memory
        fits = [
            min(m, most) // multiple * multiple if min(m, most) < np.inf else np.inf
            for m, most in zip(memory, limit, strict=True)
        ]
        held_to = [max(min(h, f), lo) for h, f, lo in zip(high, fits, low, strict=True)]
        enough = sum(held_to) >= batch
        found = limits.bounds(forecast)
        assert (found.low.tolist(), found.high.tolist(), found.enough) == (low, held_to if enough else high, enough)
        assert found.limited.tolist() == [enough and one < h for one, h in zip(held_to, high, strict=True)]
        assert found.any_limited == found.limited.any()
        sizes = limits.equal_within(found)
        assert sizes.sum() == batch
        assert not found.broken_by(sizes, multiple)
        for size, most in zip(sizes, found.high, strict=True):
            assert size == most or size + multiple >= max(
                s for s, lo in zip(sizes, low, strict=True) if s > lo or s <= size
            )


@settings(max_examples=40)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=4), st.sampled_from([1, 2]))
def test_sizes_break_bounds_that_any_of_them_is_beyond_or_between_multiples(sizes, multiple):
    count = len(sizes)
    bounds = Bounds(np.full(count, 2.0), np.full(count, 4.0), True, np.zeros(count, bool), False)
    broken = any(not 2 <= size <= 4 or size % multiple for size in sizes)
    assert bounds.broken_by(np.array(sizes), multiple) == broken


def test_where_nobody_ran_out_of_memory_limits_stay_what_they_are():
    limits = Limits.of(Policy(), "ab", 64)
    forecast = Forecast(np.ones(2), np.ones(2))
    for flags in (None, [0, 0]):
        report = Report([32, 32], [1.0, 1.0], out_of_memory=flags or [False, False])
        assert limits.after(report, limits.equal, forecast) is limits
    with pytest.raises(ValueError, match=r"one flag for each of the 2 workers, got the shape \(1,\)"):
        limits.after(Report([32, 32], [1.0, 1.0], out_of_memory=[1]), limits.equal, forecast)


def test_covariates_are_looked_at_by_those_alone_who_read_some():
    silent, reader = EWMA(), RLS(covariates=["load"])
    for one in (silent, reader):
        one.reset(["a", "b"])
    for covariates in (None, [[1.0, 2.0]], [7.0]):
        require_covariates("covariates", covariates, silent)
    require_covariates("covariates", None, reader)
    require_covariates("covariates", [[1.0], [2.0]], reader)
    with pytest.raises(ValueError, match=r"^covariates must have the shape \[workers, covariates\] \(2, 1\)"):
        require_covariates("covariates", [1.0, 2.0], reader)


def test_a_report_with_covariates_of_another_shape_is_refused_before_it_is_learnt():
    balancer = LoadBalancer(RLS(covariates=["load"]), workers=["a", "b"], global_batch=64)
    before = balancer.plan
    for covariates in ([1.0, 2.0], [[1.0]], [[1.0, 2.0], [3.0, 4.0]]):
        report = Report(before.sizes, [1.0, 2.0], covariates=covariates)
        with pytest.raises(ValueError, match=r"^the report's covariates must have the shape .* \(2, 1\)"):
            balancer.step(report)
    assert balancer.plan is before


@pytest.mark.parametrize(
    ("bounds", "batch", "said"),
    [
        ({}, 12, r"^global_batch must be a multiple of batch_multiple 8, got 12"),
        ({"lower": {"a": 5, "b": 5}}, 8, r"^the lower bounds, rounded inward to multiples of 8, sum to 16"),
        ({"upper": {"a": 15, "b": 15}}, 24, r"^the upper bounds .* rounded inward to multiples of 8, sum to 16"),
    ],
)
def test_bounds_that_leave_no_split_are_refused_with_the_one_to_change(bounds, batch, said):
    with pytest.raises(ValueError, match=said):
        Limits.of(Policy(batch_multiple=8, **bounds), ["a", "b"], batch)
