import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets import Trace, recorded
from paceline.lab import Job, Usage, load_without_averaging, record_job

usages = st.builds(
    Usage,
    st.integers(1, 4).flatmap(
        lambda hosts: st.lists(st.lists(st.floats(0, 1), min_size=hosts, max_size=hosts), min_size=1, max_size=9)
    ),
    slot_seconds=st.sampled_from([0.5, 2.0, 5.0]),
)


def busy_seconds(competitors, worker, start, stop):
    spans = [span for competitor in competitors if competitor.worker == worker for span in competitor.spans]
    return sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in spans)


@given(usages, st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_in_every_slot_competitors_are_busy_for_the_share_of_their_host(usage, workers, competitors, seed):
    slots, hosts = usage.share_SH.shape
    planned = usage.plan(workers, competitors, 2 * slots * usage.slot_seconds, seed)
    assert len(planned) == workers * competitors
    for slot in range(2 * slots):  # the trace is read over and over again
        for worker in range(workers):
            start = slot * usage.slot_seconds
            busy = busy_seconds(planned, worker, start, start + usage.slot_seconds)
            share = usage.share_SH[slot % slots, worker % hosts]
            assert busy == pytest.approx(share * competitors * usage.slot_seconds, abs=1e-6)


@given(usages, st.floats(0.3, 30), st.integers(0, 99))
def test_spans_are_in_order_within_the_plan_and_follow_from_the_seed(usage, seconds, seed):
    planned = usage.plan(2, 2, seconds, seed)
    assert planned == usage.plan(2, 2, seconds, seed)
    for competitor in planned:
        times = [moment for span in competitor.spans for moment in span]
        assert times == sorted(times)
        assert all(0 <= moment <= seconds + 1e-9 for moment in times)


def test_another_seed_gives_other_moments():
    usage = Usage([[0.5, 0.5]], slot_seconds=1.0)
    assert usage.plan(2, 1, 9.0, seed=0) != usage.plan(2, 1, 9.0, seed=1)


def test_a_covariate_of_a_trace_is_taken_as_usage_and_gaps_keep_what_was_told_before():
    panel = np.array([[np.nan, np.nan], [0.5, np.nan], [np.nan, np.nan], [0.25, np.nan]])
    start = np.arange(8.0).reshape(4, 2) // 2 * 10
    nothing = np.full((4, 2), np.nan)
    trace = Trace(
        nothing, nothing, start=start, covariates=panel[:, :, None], covariate_names=["cpu"], meta={"source": "s"}
    )
    usage = Usage.of_trace(trace, "cpu")
    np.testing.assert_array_equal(usage.share_SH, [[0.5, 0], [0.5, 0], [0.5, 0], [0.25, 0]])
    assert usage.slot_seconds == 10
    assert "4 slots of 10 s of 2 hosts" in str(usage)


def test_what_cannot_be_usage_is_an_error_that_names_it():
    trace = Trace([[8]], [[1]], covariates=[[[0.5]]], covariate_names=["cpu"])
    with pytest.raises(ValueError, match="covariate 'memory' is not in"):
        Usage.of_trace(trace, "memory")
    with pytest.raises(ValueError, match="slot_seconds must be given"):
        Usage.of_trace(trace, "cpu")
    with pytest.raises(ValueError, match=r"negative or missing, got -1\.0 at slot, host \[1, 0\]"):
        Usage([[0.5], [-1.0]], slot_seconds=1.0)
    with pytest.raises(ValueError, match="slots, hosts"):
        Usage([], slot_seconds=1.0)
    with pytest.raises(ValueError, match="slot_seconds must be more than 0"):
        Usage([[1.0]], slot_seconds=0.0)


@given(st.lists(st.floats(0, 64), min_size=2, max_size=40))
def test_the_averaging_of_the_load_is_undone(tasks):
    kept, load = np.exp(-5 / 60), [1.5]
    for n in tasks:
        load.append(kept * load[-1] + (1 - kept) * n)
    np.testing.assert_allclose(load_without_averaging(load), tasks, atol=1e-9)


def test_a_job_gets_a_usage_trace_exactly_when_it_needs_one(tmp_path):
    usage = Usage([[1.0]], slot_seconds=1.0)
    settings = {"name": "tiny", "model": "digits-mlp", "batch_size": 8, "workers": 1}
    for pattern, given_usage in (("usage", None), ("none", usage)):
        with pytest.raises(ValueError, match="usage must be given for the pattern 'usage' and for no other"):
            record_job(Job(**settings, pattern=pattern), tmp_path / "tiny.parquet", usage=given_usage)


def test_the_shipped_job_under_real_usage_says_whose_usage_it_was():
    trace = recorded.load("digits-attention-usage")
    assert trace.meta["split"] == "held-out"
    assert trace.meta["pattern"] == "usage"
    assert "hivemind-multi-cloud" in trace.meta["usage"]
    assert np.isfinite(trace.speed).all()
