"""What a simulation gives to its replay, and what it makes of what was replayed: by hand."""

import importlib
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import t as student

from paceline._curves import Curves
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.datasets import Trace
from paceline.eval import simulate
from paceline.eval.replay.synchronous import EQUAL, ORACLE, Replay, ReplayedIteration
from paceline.eval.waiting_costs import costs_of_waiting
from paceline.eval.worth import LONGEST, WARMUP
from paceline.predictors import Auto

simulating = importlib.import_module("paceline.eval.simulate")
NAN = float("nan")


# -- which job is replayed -------------------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """What is handed on to be simulated, and nothing is."""
    handed = []
    monkeypatch.setattr(simulating, "_simulated", lambda *what: handed.append(what))
    monkeypatch.setattr(simulating, "_steady", lambda *what: handed.append(("steady", *what)))
    return handed


def test_a_job_is_simulated_with_all_that_its_complete_iterations_hold(given):
    count = WARMUP + LONGEST + 4
    rng = np.random.default_rng(0)
    samples, seconds, work, comm = rng.uniform(1, 2, (4, count, 2))
    seconds[count - 9, 1] = NAN
    curves = object()
    simulate(Trace(samples, seconds, work=work, comm_seconds=comm, workers=["a", "b"]), global_batch=7, curves=curves)
    ((job, *rest),) = given
    assert rest == [7, curves]
    there = [k for k in range(count) if k != count - 9][-1050:]
    assert job.workers == ("a", "b")
    for found, all_of in (
        (job.samples, samples),
        (job.seconds, seconds),
        (job.work, work),
        (job.comm_seconds, comm),
    ):
        np.testing.assert_array_equal(found, all_of[there])
    simulate(Trace(samples, seconds))
    job, *rest = given[1]
    assert (job.work, job.comm_seconds, *rest) == (None, None, None, None)


@pytest.mark.parametrize(("complete", "steady"), [(1, True), (19, True), (20, False)])
def test_workers_of_fewer_than_twenty_complete_iterations_are_taken_to_be_steady(given, complete, steady):
    seconds = np.ones((30, 2))
    seconds[complete:, 1] = NAN
    trace = Trace(np.full((30, 2), 8), seconds)
    simulate(trace, global_batch=9, noise=0.25)
    if steady:
        assert given == [("steady", trace, 9, None, 0.25)]
    else:
        assert len(given[0][0]) == 20


def test_the_usual_noise_is_a_twentieth(given):
    trace = Trace([[8, 8]], [[1, 2]])
    simulate(trace)
    simulating.from_speeds([Fraction(1, 2), 2])
    assert [call[-1] for call in given] == [0.05, 0.05]
    assert given[1][1].seconds.tolist() == [[2.0, 0.5]]


@pytest.fixture
def replays(monkeypatch):
    """The jobs of steady workers that are replayed, with their batches and curves."""
    jobs = []

    def simulated(job, batch, curves):
        jobs.append((job, batch, curves))
        low, high = [(0.2, 0.3), (0.1, 0.25), (0.22, 0.5)][(len(jobs) - 1) % 3]
        shares = dict.fromkeys(("hindsight", "slow_machines", "uneven_samples", "noise"), 0.0)
        return simulating.Simulation(
            **{"workers": 2, "iterations": 3, "global_batch": 4, "saving": low, "low": low, "high": high},
            **shares,
            slowest="b",
        )

    monkeypatch.setattr(simulating, "_simulated", simulated)
    return jobs


def test_steady_workers_keep_the_mean_of_their_times_but_for_noise_that_is_drawn(replays):
    samples = np.array([[2.0, 6.0], [4.0, 3.0], [NAN, 3.0]])
    seconds = samples * np.array([[0.1, 0.5], [0.3, 0.6], [NAN, 0.7]])
    curves = object()
    found = simulate(Trace(samples, seconds, workers=["a", "b"]), curves=curves, noise=0.1)
    drawn = np.random.default_rng(0).standard_normal((300 + 50, 2))
    for (job, batch, with_curves), noise in zip(replays, (0.1, 0.05, 0.2), strict=True):
        np.testing.assert_allclose(job.seconds, np.exp(noise * drawn) * [0.2, 0.6])
        assert (job.samples == 1).all()
        assert (job.workers, batch, with_curves) == (("a", "b"), 3 + 3, curves)
    assert (found.low, found.high, found.saving) == (0.1, 0.5, 0.2)
    assert found.assumed[0].startswith("Assumed: each worker keeps its speed of 3 measurements, and varies by 10.0 %")


@pytest.mark.parametrize(
    ("samples", "asked", "batch"),
    [([1, 1], None, None), ([2, 1], None, 3), ([1.5, 0.25], None, 2), ([2, 1], 9, 9), ([1, 1], 9, 9)],
)
def test_a_single_sample_a_worker_says_nothing_about_the_batch(replays, samples, asked, batch):
    simulate(Trace([samples], [[1.0, 1.0]]), global_batch=asked)
    assert [call[1] for call in replays] == [batch] * 3


# -- what is made of it ----------------------------------------------------------------------------------------------


@pytest.fixture
def replayed(monkeypatch):
    """Replayed seconds that are made up, of three workers; and what was asked to be replayed."""
    asked, seconds = [], np.random.default_rng(4).uniform(1, 2, (3, 9, 3))
    seconds[0, :, 1] += 0.6

    def replay(schemes, job, **how):
        asked.append((schemes, job, how))
        ran = {
            name: [ReplayedIteration(k, np.full(3, 4), row) for k, row in enumerate(table)]
            for name, table in zip((EQUAL, "live", ORACLE), seconds, strict=True)
        }
        return Replay("job", ran, skipped=0, global_batch=how["global_batch"] or 300)

    monkeypatch.setattr(simulating, "replay", replay)
    return asked, seconds


def job_of(samples=(4.0, 5.0, 6.0), **more):
    rng = np.random.default_rng(2)
    samples = np.tile(samples, (12, 1))
    samples[1] *= 40  # the usual batch is the median
    return Trace(samples, rng.uniform(1, 2, (12, 3)), workers=["a", "b", "c"], **more)


@pytest.mark.parametrize("global_batch", [None, 30])
@pytest.mark.parametrize("costs", ["", "work"])
@pytest.mark.parametrize("wire", ["", "comm"])
def test_shares_are_of_the_time_with_equal_batches_and_with_the_exchange(replayed, global_batch, costs, wire):
    rng, (asked, seconds) = np.random.default_rng(3), replayed
    work, comm = rng.uniform(1, 2, (12, 3)), rng.uniform(0.1, 0.3, (12, 3))
    comm[5] = NAN
    comm[:3] = 99.0  # warm-up
    job = job_of(work=work if costs else None, comm_seconds=comm if wire else None)
    found = simulating._simulated(job, global_batch, None)
    exchange = np.nanmedian(comm[3:]) * (global_batch or 15) / 15 if wire else 0.0
    equal, live, oracle = ([max(row) + exchange for row in table] for table in seconds)
    kept, mean = sum(live) / sum(equal), sum(equal) / 9
    moves = [(b - kept * a) / mean for a, b in zip(equal, live, strict=True)]
    waves = [
        math.sqrt(2 / 9) * sum(x * math.cos(math.pi * k * (2 * n + 1) / 18) for n, x in enumerate(moves))
        for k in (1, 2, 3)
    ]
    error = math.sqrt(sum(wave**2 for wave in waves) / 3 / 9)
    reach = math.hypot(student.ppf(0.95, 3) * math.sqrt(2) * error, 0.01)
    told = {name: getattr(found, name) for name in ("saving", "low", "high")}
    assert told == pytest.approx({"saving": 1 - kept, "low": 1 - kept - reach, "high": 1 - kept + reach})
    cost = work[3:] / [4.0, 5.0, 6.0] if costs else None
    shares = costs_of_waiting(seconds[0], cost, foreseen=sum(oracle) - 9 * exchange)
    whole = [share * (1 - exchange / mean) for share in shares]
    assert [found.uneven_samples, found.slow_machines, found.noise] == pytest.approx(whole)
    assert found.hindsight == pytest.approx(sum(whole))
    assert min(whole[0] * bool(costs), *whole[1:]) >= 0
    assert (found.workers, found.iterations, found.slowest, found.assumed) == (3, 9, "b", ())
    assert found.global_batch == (global_batch or 15)
    ((schemes, same, how),) = asked
    assert same is job
    assert how == {"global_batch": global_batch or 15, "warmup": 3, "curves": None}
    assert list(schemes) == ["live"]
    assert isinstance(schemes["live"].predictor, Auto)
    assert schemes["live"].policy.batch_multiple == default_batch_multiple(global_batch or 15, 3)
    assert schemes["live"].policy.upper is None


@pytest.mark.parametrize(("samples", "batch"), [((2.0, 1.0, 1.0), 4), ((1.0, 1.0, 1.0), None), ((0.1, 0.0, 0.1), None)])
def test_a_batch_that_is_hardly_a_sample_for_each_is_left_to_the_replay(replayed, samples, batch):
    comm = np.ones((12, 3))
    found = simulating._simulated(job_of(samples, comm_seconds=comm), None, None)
    (schemes, _, how) = replayed[0][0]
    assert how["global_batch"] == batch
    assert schemes["live"].policy.batch_multiple == (default_batch_multiple(4, 3) if batch else 1)
    own = round(sum(samples))
    equal, live = (sum(max(row) for row in table) for table in replayed[1][:2])
    exchange = 9 * (batch or 300) / own if own else 0.0
    assert found.saving == pytest.approx(1 - (live + exchange) / (equal + exchange))


def test_a_batch_of_one_sample_for_each_is_refused_and_one_more_is_not(replayed):
    with pytest.raises(ValueError, match="a global batch of 3 is at most one sample for each of the 3 workers"):
        simulating._simulated(job_of(), 3, None)
    assert simulating._simulated(job_of(), 4, None).global_batch == 4


def test_half_of_a_long_warm_up_is_no_more_than_fifty_and_curves_limit_the_sizes(replayed):
    curves = Curves(np.zeros(3), np.ones(3), np.zeros(3), np.array([8.5, math.inf, 9.0]))
    long = Trace(np.full((208, 3), 4.0), np.ones((208, 3)), workers=["a", "b", "c"])
    simulating._simulated(long, None, curves)
    schemes, _, how = replayed[0][0]
    assert how == {"global_batch": 12, "warmup": 50, "curves": curves}
    assert schemes["live"].policy.upper == {"a": 8, "b": 2**31, "c": 9}


# -- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_device_too_small_for_an_equal_share_is_named_with_its_largest_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(simulating, "simulate", lambda trace, **how: trace)
    for name, limit in (("large", 64), ("small", 32), ("tiny", 16)):
        rows = "".join(f"x,{name},m,{x},{0.01 * x if x <= limit else ''},,\n" for x in (8, 16, 32, 64, 128))
        (tmp_path / f"{name}.csv").write_text(f"source,device,model,batch,seconds,comm_seconds,held\n{rows}")
    files = {tmp_path / "large.csv": 2, tmp_path / "small.csv": 1, tmp_path / "tiny.csv": 1}
    with pytest.raises(
        ValueError, match=r"share of 33 samples .* of small-0, whose largest batch is 32: give a smaller"
    ):
        simulating.from_profiles(files, global_batch=4 * 32 + 1)
    with pytest.raises(
        ValueError, match=r"share of 32 samples .* of tiny-0, whose largest batch is 16: give a smaller"
    ):
        simulating.from_profiles(files, global_batch=4 * 32)
    assert simulating.from_profiles(files, global_batch=4 * 16).workers == ("large-0", "large-1", "small-0", "tiny-0")


def test_a_file_that_is_named_as_text_and_as_a_path_is_not_counted_once(tmp_path):
    path = tmp_path / "gpu.csv"
    path.write_text("source,device,model,batch,seconds,comm_seconds,held\nx,gpu,m,8,0.1,,\nx,gpu,m,16,0.2,,\n")
    with pytest.raises(ValueError, match="is longer than argument"):
        simulating.from_profiles({path: 1, str(path): 2}, global_batch=64)
