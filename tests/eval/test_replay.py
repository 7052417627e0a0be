"""The scheme that knows the true speeds is the fastest of all splits; errors may be numbers of any precision."""

import itertools

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer
from paceline.datasets import Trace
from paceline.eval import Balanced, EqualBatches, Oracle, iter_replay, replay, replay_all
from paceline.predictors import EWMA, Curves, LastValue, Report, checks


class Clairvoyant(LastValue):
    """Knows the speeds to come, as no honest predictor does: its covariates are the speeds themselves."""

    covariate_names = ("speed",)

    def forecast_speed(self, covariates_WD, horizon):
        return covariates_WD[:, 0]


def with_speed_as_covariate(trace):
    return Trace(trace.samples, trace.seconds, covariates=trace.speed[:, :, None], covariate_names=["speed"])


def test_a_replay_computed_by_hand():
    # Speeds 30 and 15: equal batches of 30 take 1 s and 2 s; by hindsight 40 and 20 take 4/3 s each.
    table = replay({}, Trace([[30, 30]] * 2, [[1, 2]] * 2), warmup=0).table.set_index("scheme")
    assert table.loc["equal batches", ["mean", "waiting"]].tolist() == [2.0, 0.25]
    assert table.loc["oracle", "mean"] == pytest.approx(4 / 3)
    assert table.loc["oracle", "speed-up"] == pytest.approx(1.5)
    assert table.loc["equal batches", "regret"] == pytest.approx(0.5)


@pytest.mark.slow
def test_a_replay_plans_what_a_job_would_plan():
    trace = with_speed_as_covariate(checks.example_trace())
    ran = [each.sizes.tolist() for each in iter_replay(Balanced(EWMA()), trace, global_batch=192)]
    balancer, plans = LoadBalancer(EWMA(), workers=trace.workers, global_batch=192), []
    for speed_W in trace.speed:
        plans.append(balancer.plan)
        balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / speed_W))
    assert ran == [plan.sizes.tolist() for plan in plans]
    assert 5 < sum(plan.acted for plan in plans) < len(trace) / 2, "it keeps sizes while little would be gained"


@pytest.mark.slow
def test_balanced_perfect_predictor_low_regret():
    table = replay({"perfect": Balanced(Clairvoyant())}, with_speed_as_covariate(checks.example_trace())).table
    assert 0.0 < table.set_index("scheme").loc["perfect", "regret"] < 0.04


def test_sizes_do_not_look_ahead():
    trace = checks.example_trace(40)
    seconds = trace.seconds.copy()
    seconds[20:] *= np.random.default_rng(0).uniform(0.1, 10, seconds[20:].shape)
    changed = Trace(trace.samples, seconds, workers=trace.workers)
    ran = [list(iter_replay(Balanced(EWMA()), t, global_batch=192)) for t in (trace, changed)]
    for one, other in zip(ran[0][:21], ran[1][:21], strict=True):
        np.testing.assert_array_equal(one.sizes, other.sizes)


@pytest.mark.slow
def test_incomplete_iterations_skipped():
    trace = checks.example_trace()
    seconds = trace.seconds.copy()
    seconds[[100, 150], 1] = np.nan
    result = replay({"last": Balanced(LastValue())}, Trace(trace.samples, seconds))
    assert len(result.seconds("last")) == len(trace) - 50 - 2


def test_jobs_are_summed_up_by_geometric_means():
    traces = [Trace([[30, 30]] * 3, [[1, slow]] * 3, meta={"job": f"slow{slow}"}) for slow in (2, 3, 9)]
    result = replay_all({}, traces, warmup=0)
    overall = result.overall.set_index("scheme")
    each = [replay({}, t, warmup=0).table.set_index("scheme").loc["oracle", "speed-up"] for t in traces]
    assert overall.loc["oracle", "speed-up"] == pytest.approx(np.prod(each) ** (1 / 3))
    assert set(result.per_trace["trace"]) == {"slow2", "slow3", "slow9"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"global_batch": 2}, "global_batch must be at least a sample for each of 3 workers, got 2"),
        ({"warmup": -1}, "warmup must be in .*, got -1"),
        ({"warmup": 500}, r"warmup must be in \[0, 200\), the iterations of trace .example., got 500"),
    ],
)
def test_invalid_arguments_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        replay({}, checks.example_trace(), **arguments)


def test_sizes_see_covariates_of_their_boundary():
    trace = with_speed_as_covariate(checks.example_trace(40))
    covariates = trace.covariates.copy()
    covariates[20, 0] *= 10
    changed = Trace(trace.samples, trace.seconds, covariates=covariates, covariate_names=["speed"])
    ran = [[i.sizes for i in iter_replay(Balanced(Clairvoyant()), t, global_batch=192)] for t in (trace, changed)]
    assert next(k for k in range(40) if (ran[0][k] != ran[1][k]).any()) == 20


def test_scheme_learns_from_own_sizes():
    seen = []

    class Alternates(EqualBatches):
        covariate_names = ("cpu",)

        def sizes(self, iteration, covariates):
            return np.array([[30, 30], [40, 20]][iteration])

        def observe(self, sizes, seconds, covariates):
            seen.append((sizes.tolist(), seconds.tolist(), covariates[:, 0].tolist()))

    covariates = [[[0.1], [0.2]], [[0.3], [0.4]]]
    trace = Trace([[30, 30]] * 2, [[1, 2]] * 2, covariates=covariates, covariate_names=["cpu"])  # speeds 30 and 15
    list(iter_replay(Alternates(), trace, global_batch=60))
    assert seen == [([30, 30], [1.0, 2.0], [0.1, 0.2]), ([40, 20], [40 / 30, 20 / 15], [0.3, 0.4])]


def test_global_batch_from_first_complete_iteration():
    nan = np.nan
    trace = Trace([[99, 99], [30, 30], [50, 50]], [[1, nan], [1, 2], [1, 2]])
    (first, _) = replay({}, trace, warmup=0).iterations["equal batches"]
    assert first.sizes.tolist() == [30, 30]


def test_mean_and_p95_of_iteration_times():
    seconds = [[1.0, k * k] for k in range(1, 22)]  # equal batches take 1, 4, ..., 441 s
    row = replay({}, Trace([[30, 30]] * 21, seconds), warmup=0).table.set_index("scheme").loc["equal batches"]
    assert row["mean"] == pytest.approx(sum(k * k for k in range(1, 22)) / 21)
    assert row["p95"] == 400.0


class Skimps(EqualBatches):
    """Hands out one sample less than it should."""

    def sizes(self, iteration, covariates):
        return super().sizes(iteration, covariates) - np.eye(3, dtype=np.int64)[0]


class Idle(EqualBatches):
    """Leaves a worker without samples."""

    def sizes(self, *given):
        sizes = super().sizes(*given)
        return np.array([0, sizes.sum()])


def test_a_scheme_that_leaves_a_worker_idle_is_refused():
    with pytest.raises(ValueError, match=r"at least one to each worker, got \[0, 200\], which is 200"):
        replay({"idle": Idle()}, Trace([[30, 30]] * 2, [[1, 2]] * 2), global_batch=200, warmup=0)


def test_a_scheme_that_loses_samples_is_refused():
    with pytest.raises(ValueError, match=r"Skimps must assign 192 samples, .*, which is 191"):
        replay({"skimps": Skimps()}, checks.example_trace())


def test_reserved_scheme_names_refused():
    with pytest.raises(ValueError, match=r"must not use the names \['oracle'\]"):
        replay({"oracle": Balanced(EWMA())}, checks.example_trace())


def test_a_job_that_never_was_complete_is_refused():
    with pytest.raises(ValueError, match="has no iteration after a warm-up of 0 in which all workers reported"):
        replay({}, Trace([[8, 8]] * 2, [[1, np.nan]] * 2), warmup=0)


def test_indivisible_batch_replaced_with_note():
    """One sample a worker, as rates have it: nothing could be moved, and every scheme would print 1.0."""
    trace = Trace(samples=np.ones((60, 2)), seconds=np.tile([1.0, 3.0], (60, 1)), meta={"job": "rates"})
    result = replay({}, trace, warmup=10)
    assert result.global_batch == 200
    assert "the recorded 2 cannot be divided finely among 2 workers" in result.note
    assert result.table.set_index("scheme")["speed-up"]["oracle"] == pytest.approx(2.0)
    assert replay({}, trace, warmup=10, global_batch=4).note == ""


def all_splits(batch, workers):
    """Yield every split in which each worker takes a sample."""
    for cuts in itertools.combinations(range(1, batch), workers - 1):
        yield np.diff([0, *cuts, batch])


@pytest.mark.parametrize("has_curves", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_oracle_split_is_optimal(seed, has_curves):
    rng = np.random.default_rng(seed)
    speed_TW, batch = rng.uniform(0.3, 3.0, (4, 3)), 14
    floor, slope, intercept = rng.uniform(0.0, 4.0, 3), rng.uniform(0.1, 1.0, 3), rng.uniform(0.0, 3.0, 3)
    curves = Curves(floor, slope, intercept, np.full(3, np.inf)) if has_curves else None
    scheme = Oracle(speed_TW, curves)
    scheme.reset(["a", "b", "c"], batch)

    def makespan(sizes, speed_W):
        usual = np.maximum(floor, intercept + slope * sizes) if has_curves else sizes
        return (usual / speed_W).max()

    for k, speed_W in enumerate(speed_TW):
        sizes = scheme.sizes(k, None)
        assert sizes.sum() == batch
        least = min(makespan(other, speed_W) for other in all_splits(batch, 3))
        assert makespan(sizes, speed_W) == pytest.approx(least, rel=1e-12)


def test_oracle_respects_memory_limit():
    scheme = Oracle(np.array([[100.0, 1.0]]), Curves(np.zeros(2), np.ones(2), np.zeros(2), np.array([4.0, np.inf])))
    scheme.reset(["a", "b"], 10)
    assert scheme.sizes(0, None).tolist() == [4, 6]
