"""Batch time curves learned from traces, profiles and reports. Axes: T iterations, W workers."""

import numpy as np
import pandas as pd
import pytest

from paceline.coordinator import LoadBalancer
from paceline.datasets import Trace
from paceline.datasets import recorded as recorded_jobs
from paceline.eval import Balanced, backtest, replay
from paceline.predictors import EWMA, BatchTime, Curves, Report
from paceline.solver import split
from paceline.training import fit

TRUTH = Curves(
    floor=np.array([0.0, 0.5, 0.4]),
    slope=np.array([0.010, 0.005, 0.002]),
    intercept=np.array([0.2, 0.1, 0.3]),
    limit=np.full(3, np.inf),
)
FLEET = ("k80", "p100", "v100")


def observe(model, sizes, seconds, **more):
    model.observe(Report(samples=np.asarray(sizes, float), seconds=np.asarray(seconds, float), **more))


def recorded(noise=0.0, iterations=60, sizes=(32, 64, 128, 256, 512)):
    """A trace of the fleet whose batches moved over these sizes."""
    rng = np.random.default_rng(0)
    samples_TW = rng.choice(sizes, (iterations, 3)).astype(float)
    seconds_TW = np.stack([TRUTH.seconds(row) for row in samples_TW]) * np.exp(rng.normal(0, noise, samples_TW.shape))
    return Trace(samples_TW, seconds_TW, workers=FLEET, meta={"job": "moved"})


def profile(device="k80", seconds=(0.52, 0.84, 1.48, np.nan), **more):
    batches = [32.0, 64.0, 128.0, 256.0][: len(seconds)]
    columns = {"source": "made", "device": device, "model": "net", "held": "", "comm_seconds": np.nan}
    return pd.DataFrame({"batch": batches, "seconds": list(seconds), **columns, **more})


def test_curves_fitted_from_moved_batches():
    model = fit(BatchTime(), [recorded()])
    model.reset(FLEET)
    sizes = np.array([100, 100, 100])
    np.testing.assert_allclose(model.predict().curves.seconds(sizes), TRUTH.seconds(sizes), rtol=1e-6)


def test_device_type_shares_one_curve():
    trace = recorded()
    model = BatchTime(devices={"rank-0": "k80", "rank-1": "k80"}).fit([trace])
    model.reset(["rank-0", "rank-1", "v100"])
    curves = model.predict().curves
    np.testing.assert_allclose(curves.slope, [0.010, 0.010, 0.002], rtol=1e-6)
    np.testing.assert_allclose(curves.intercept, [0.2, 0.2, 0.3], rtol=1e-6)


def test_batches_differing_between_jobs_no_curve():
    jobs = [Trace(np.full((9, 1), size), np.full((9, 1), 1.0), workers=["0"]) for size in (64.0, 512.0)]
    assert fit(BatchTime(), jobs).curves_ == {}
    assert list(BatchTime().fit([*jobs, recorded()]).curves_) == list(FLEET)


def test_unknown_type_starts_with_median_curve():
    model = BatchTime().fit_profiles(profile())
    model.reset(["k80", "stranger"])
    curves = model.predict().curves
    assert curves.slope[0] == curves.slope[1]
    assert curves.limit.tolist() == [128.0, np.inf]


def test_a_profile_gives_curve_and_memory_limit():
    model = BatchTime(devices={"rank-0": "k80"}).fit_profiles(profile())
    model.reset(["rank-0"])
    curves = model.predict().curves
    np.testing.assert_allclose([curves.slope[0], curves.intercept[0]], [0.01, 0.2], rtol=1e-6)
    assert curves.limit[0] == 128


def test_near_fits_bent_curve_at_batch():
    sizes = 2.0 ** np.arange(3, 13)
    columns = {"source": "made", "device": "gpu", "model": "net", "held": "", "comm_seconds": np.nan}
    bent = pd.DataFrame({"batch": sizes, "seconds": 0.01 * sizes**0.8, **columns})
    missed = {}
    for near in (None, 48.0):
        model = BatchTime(near=near).fit_profiles(bent)
        model.reset(["gpu"])
        missed[near] = abs(model.predict().curves.seconds(np.array([48.0]))[0] / (0.01 * 48**0.8) - 1)
    assert missed[48.0] < 0.02 < missed[None]
    with pytest.raises(ValueError, match="near must be a batch size above 0, or None, got 0"):
        BatchTime(near=0)


def test_ambiguous_profiles_refused():
    with pytest.raises(ValueError, match="'k80' has several: select the rows of one source, model and held"):
        BatchTime().fit_profiles(pd.concat([profile(), profile(model="other")]))
    with pytest.raises(ValueError, match="profiles of 'k80' must hold batches that differ in size"):
        BatchTime().fit_profiles(profile(seconds=[0.5, np.nan]))


def test_constant_batch_curve_is_proportional():
    model, plain = BatchTime(), EWMA()
    rng = np.random.default_rng(0)
    for predictor in (model, plain):
        predictor.reset(FLEET)
    for _ in range(50):
        seconds = rng.uniform(0.5, 1.5, 3)
        observe(model, [64] * 3, seconds)
        observe(plain, [64] * 3, seconds)
    curves = model.predict().curves
    np.testing.assert_allclose(model.predict().speed, plain.predict().speed, rtol=1e-9)
    np.testing.assert_allclose(curves.slope, 1.0 / plain.predict().speed, rtol=1e-9)
    assert (curves.intercept == 0).all()
    assert (curves.floor == 0).all()


@pytest.mark.slow
def test_slope_and_intercept_learned_online():
    model = BatchTime()
    model.reset(["a"])
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = rng.uniform(60, 140)
        observe(model, [size], [(0.5 + 0.01 * size) * np.exp(rng.normal(0, 0.02))])
    curves = model.predict().curves
    np.testing.assert_allclose(curves.seconds(np.array([70.0])), 1.2, rtol=0.03)
    np.testing.assert_allclose(curves.seconds(np.array([130.0])), 1.8, rtol=0.03)


def test_slowed_worker_scales_its_curve():
    model = fit(BatchTime(relative_speed="last-value"), [recorded()])
    model.reset(FLEET)
    sizes = np.array([100.0, 200.0, 300.0])
    observe(model, sizes, TRUTH.seconds(sizes) * [1, 3, 1])
    expected = TRUTH.seconds(np.full(3, 400)) * [1, 3, 1]
    np.testing.assert_allclose(model.predict().curves.seconds(np.full(3, 400)), expected, rtol=1e-6)


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.slow
def test_curve_sizes_beat_speed_sizes(fitted):
    """Devices switch between two states; equal times are reached at once, not by going there step by step."""
    late = {}
    for name, model in {"curves": BatchTime(relative_speed="last-value"), "speeds": EWMA(smoothing=1.0)}.items():
        model = fit(model, [recorded()]) if fitted else model
        model.reset(FLEET)
        rng = np.random.default_rng(0)
        slow, ratios = np.ones(3), []
        for k in range(300):
            if k % 5 == 0:
                slow = rng.choice([1.0, 1.5], 3)
            truth = Curves(TRUTH.floor * slow, TRUTH.slope * slow, TRUTH.intercept * slow, TRUTH.limit)
            sizes = split(model.predict().curves, 600, lower=1).sizes
            seconds = truth.seconds(sizes)
            observe(model, sizes, seconds)
            if k % 5 and k > 50:
                ratios.append(seconds.max() / split(truth, 600, lower=1).makespan)
        late[name] = np.mean(ratios) - 1.0
    assert late["speeds"] > 0.01
    assert late["curves"] < (0.01 if fitted else 0.25) * late["speeds"]


def test_the_memory_limit_is_learned_from_failures():
    model = BatchTime()
    model.reset(["a", "b"])
    observe(model, [100, 100], [1.0, 1.0])
    assert np.isinf(model.predict().curves.limit).all()
    observe(model, [160, 900], [np.nan, 0.3], out_of_memory=[True, True])
    assert model.predict().curves.limit.tolist() == [100, 450], "what worked, but no less than half of what failed"
    observe(model, [140, 500], [1.4, 5.0])
    assert model.predict().curves.limit.tolist() == [140, 500]
    observe(model, [120, 950], [np.nan, 9.5], out_of_memory=[True, False])
    assert model.predict().curves.limit.tolist() == [60, np.inf], "a size that worked once may fail, and the reverse"


def test_spread_is_of_time_at_batch_run():
    """Sizes that change a lot are no forecast error where the curve is known."""
    model = fit(BatchTime(), [recorded()])
    result = backtest(model, recorded(), warmup=10)
    assert model.predict().spread.max() < 1e-6
    assert (result.mae > 10).all(), "the speed at the last batch is another matter"


@pytest.mark.slow
def test_relative_speed_reads_its_covariates():
    from paceline.predictors import checks

    model = fit(BatchTime(relative_speed="rls:covariates=['cpu_busy','distractor']"), [checks.example_trace()])
    assert model.covariate_names == ("cpu_busy", "distractor")
    model.reset(checks.WORKER_NAMES)
    trace = checks.example_trace(seed=5)
    for k in range(20):
        observe(model, trace.samples[k], trace.seconds[k], covariates=trace.covariates[k])
    idle, busy = (
        model.predict(covariates=np.column_stack([np.full(3, cpu), np.full(3, 0.5)])).speed for cpu in (0.0, 1.0)
    )
    assert (idle > busy).all()


@pytest.mark.parametrize("job", ["digits-cnn-bursty", "digits-attention-moving"])
@pytest.mark.slow
def test_proportional_jobs_balance_as_by_speed(job):
    """Contended CPU workers: the balancer's own moves, and other jobs it was fitted to, must not look like a curve."""
    whole = recorded_jobs.load(job)
    trace = Trace(whole.samples[:500], whole.seconds[:500], workers=whole.workers, meta={"job": job})
    fitted = fit(BatchTime(), recorded_jobs.load_split("fit"))
    schemes = {
        name: Balanced(model) for name, model in {"speed": EWMA(), "curve": BatchTime(), "fitted": fitted}.items()
    }
    result = replay(schemes, trace)
    for name in ("curve", "fitted"):
        assert result.seconds(name).mean() < 1.01 * result.seconds("speed").mean()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_equal_fleet_hardly_slower_than_equal_batches(seed):
    """A level stretch says nothing of larger batches: 806 of 810 samples once went to one worker of five."""
    random = np.random.default_rng(seed)
    workers, share, knee = int(random.integers(2, 7)), 160, 160 * 2.0 ** random.uniform(-2, 2)

    def seconds(size_W):
        return np.maximum(1 + 0.05 * size_W / knee, 1.05 * size_W / knee)

    names = [str(w) for w in range(workers)]
    balancer = LoadBalancer(BatchTime(), workers=names, global_batch=share * workers)
    taken = equal = 0.0
    for noise_W in np.exp(random.normal(0, 0.03, (60, workers))):
        sizes = balancer.plan.sizes
        seconds_W = seconds(sizes) * noise_W
        taken, equal = taken + seconds_W.max(), equal + (seconds(np.full(workers, share)) * noise_W).max()
        balancer.step(Report(sizes, seconds_W))
    assert taken < 1.05 * equal  # noise of 3% and attempts to tell slopes apart
