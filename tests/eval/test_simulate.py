"""A saving that is promised beforehand: its interval, what the log cannot tell, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.coordinator import Policy
from paceline.datasets import Trace
from paceline.datasets.waiting_time import waiting_of
from paceline.eval import Balanced, from_profiles, from_speeds, replay, simulate
from paceline.predictors import Auto

SIZES = np.where(np.arange(200)[:, None] // 4 % 2, 32.0, 64.0) * np.ones(2)
"""Two workers whose batches are halved for four iterations in eight, as in a probe."""


def job(pace, noise=0.02, iterations=200, seed=0, **more):
    """A job of equal batches of 64 whose workers take so long for one, with noise."""
    rng = np.random.default_rng(seed)
    seconds_TW = np.asarray(pace) * np.exp(noise * rng.standard_normal((iterations, np.shape(pace)[-1])))
    return Trace(np.full(seconds_TW.shape, 64.0), seconds_TW, **more)


def probed(fixed, per_sample, noise=0.03, seed=0, pause=0.0, who=0):
    """A recording of a probe: fixed seconds, seconds of a sample, and a pause of one worker."""
    rng = np.random.default_rng(seed)
    seconds_TW = (np.asarray(fixed) + np.asarray(per_sample) * SIZES) * np.exp(noise * rng.standard_normal(SIZES.shape))
    seconds_TW[100, who] += pause
    return Trace(SIZES, seconds_TW, meta={"probe": "2 batch sizes"})


def test_constant_sizes_give_a_range():
    trace = job([0.1, 0.1, 0.2], workers=["a", "b", "c"])
    found = simulate(trace)
    table = replay({"live": Balanced(Auto(), Policy(batch_multiple=2))}, trace).table.set_index("scheme")
    assert found.needs_probe
    assert not found.pays
    assert found.low == 0
    assert found.max_saving == pytest.approx(1 - 1 / table.loc["live", "speed-up"], abs=0.01)
    assert "0 to 38% of the time, depending on how much of c's extra time scales with its batch" in found.gain[0]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["saving"] is None


@pytest.mark.parametrize(
    ("fixed", "per_sample", "saving"),
    [
        ([0.0, 0.0], [0.001, 0.003], 0.5),
        ([0.05, 0.05], [0.001, 0.003], 0.096 / 0.242),  # 50 + 96 = 50 + 3 * 32 ms
        ([0.0, 0.05], [0.001, 0.001], 0.025 / 0.114),  # 89 = 50 + 39 ms
        ([0.1, 0.2], [0.0001, 0.0001], 0.0063 / 0.2064),  # moves all but one sample
        ([0.1, 0.2], [0.0, 0.0], 0.0),
    ],
)
def test_probe_teaches_fixed_parts(fixed, per_sample, saving):
    found = simulate(probed(fixed, per_sample))
    assert not found.needs_probe
    assert found.low <= saving <= found.high
    assert found.high - found.low < 0.12
    assert found.job_batch == 128


def test_a_fixed_delay_is_no_gain():
    found = simulate(probed([0.013, 0.053], [1e-6, 1e-6]))
    assert found.high < 0.05
    assert not found.pays


@pytest.mark.parametrize(("who", "pause"), [(0, 600.0), (1, 60.0)])
def test_a_pause_does_not_follow_the_batch(who, pause):
    seconds_TW = [0.1, 0.2] * np.random.default_rng(0).uniform(0.98, 1.02, (200, 2))
    plain = simulate(Trace(np.full((200, 2), 64.0), seconds_TW))
    seconds_TW[100, who] += pause
    found = simulate(Trace(np.full((200, 2), 64.0), seconds_TW))
    assert found.max_saving == pytest.approx(plain.max_saving * 40 / (40 + pause), rel=0.02)
    assert found.paused_share == pytest.approx(pause / (40 + pause), rel=0.01)
    without, narrowed = simulate(probed([0, 0], [0.001, 0.003])), simulate(probed([0, 0], [0.001, 0.003], pause=pause))
    assert narrowed.saving == pytest.approx(without.saving * (1 - narrowed.paused_share), rel=0.05)


def test_wall_times_are_refused():
    rng = np.random.default_rng(0)
    step_TW = rng.uniform(0.1, 0.2, (60, 1)) * np.ones(4)
    for apart in (0.0, 2e-4):
        trace = Trace(np.full((60, 4), 8.0), step_TW + rng.uniform(0, apart, (60, 4)))
        with pytest.raises(ValueError, match=r"these are wall times.*record busy time: paceline record -- "):
            simulate(trace)
        assert np.isnan(waiting_of(trace).share), "how much is waited is not known either"
    busy = Trace(np.full((60, 4), 8.0), step_TW, wait_seconds=0.1 * step_TW)
    assert not simulate(busy).pays, "waiting was measured, so these are busy times"


def test_possible_wall_times_are_named():
    rng = np.random.default_rng(0)
    alike = Trace(np.full((60, 4), 8.0), rng.normal(0.2, 4e-4, (60, 4)))
    assert "without waiting" in str(simulate(alike))
    assert "without waiting" not in str(simulate(replace(alike, wait_seconds=np.full((60, 4), 1e-4))))
    assert "without waiting" not in str(simulate(job([0.1, 0.2])))


def test_job_batch_of_micro_batch_or_unknown():
    twice = job([0.1, 0.2], meta={"accumulate": "2"})
    assert (simulate(twice).job_batch, simulate(twice).accumulate) == (64, 2)
    trace = job([0.1, 0.2])
    assert simulate(trace).job_batch == 128
    assert simulate(trace, global_batch=256).job_batch == 256
    of_steps = np.ones_like(trace.samples)
    assert simulate(Trace(of_steps, trace.seconds)).job_batch is None
    assert simulate(Trace(of_steps, trace.seconds, meta={"global_batch": "256"})).job_batch == 256


def test_recorded_exchange_is_part_of_time():
    trace = job([0.1, 0.2])
    beside = simulate(Trace(trace.samples, trace.seconds, comm_seconds=np.full(trace.seconds.shape, 0.2)))
    assert beside.max_saving == pytest.approx(simulate(trace).max_saving / 2, rel=0.05)


def test_speeds_interval_spans_noise():
    found = from_speeds([100, 100, 50])
    assert found.low < found.saving < found.high
    assert found.hindsight_saving == pytest.approx(1 - 2 / 5 * 1.5, abs=0.05)  # 2/50 against 3/250 of the samples
    assert len(found.assumptions) == 2
    few = simulate(job([0.1, 0.1, 0.2], iterations=10, noise=0.0))
    assert "over 10 measurements" in few.assumptions[0]
    assert few.max_saving == pytest.approx(from_speeds([2, 2, 1], global_batch=192).saving)


@pytest.mark.slow
def test_profiles_of_mixed_fleet(tmp_path):
    for name, factor in (("fast", 1), ("slow", 2)):
        rows = [f"x,d,m,{size},{factor * (0.006 + 0.0005 * size)},," for size in (8, 32, 64, 128, 256)]
        (tmp_path / f"{name}.csv").write_text("source,device,model,batch,seconds,comm_seconds,held\n" + "\n".join(rows))
    both = {tmp_path / "fast.csv": 2, tmp_path / "slow.csv": 1}
    found = from_profiles(both, global_batch=192, noise=0.01)
    # Equal: 2 (6 + 32) = 76 ms. Balanced: t with 2 (t - 6) / .5 + (t - 12) / 1 = 192, 45.6 ms.
    assert found.hindsight_saving == pytest.approx(1 - 45.6 / 76, abs=0.02)
    assert found.saving > 0.9 * found.hindsight_saving
    assert found.slowest_worker == "slow-0"
    slow = tmp_path / "slow.csv"
    slow.write_text(f"{slow.read_text('utf-8')}\nx,d,m,512,,,")
    with pytest.raises(ValueError, match="share of 300 samples does not fit into the memory of slow-0, whose largest"):
        from_profiles(both, global_batch=900)


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (Trace(np.ones((50, 2)), np.full((50, 2), np.nan)), "no measured speed: record samples and seconds"),
        (job([0.1]), "the job has one worker"),
        (Trace(np.where(np.eye(2)[np.arange(60) % 2] > 0, 1, np.nan), np.ones((60, 2))), "missing in 30 of 60"),
        (Trace(np.ones((2, 100_000)), np.ones((2, 100_000))), "at most 20,000 workers, and the job has 100,000"),
    ],
)
def test_unanswerable_traces_refused(trace, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate(trace)


def test_waiting_has_one_definition():
    trace = job([0.1, 0.2], noise=0.2)
    table = replay({}, trace, warmup=0).table.set_index("scheme")
    assert simulate(trace).waiting.share == pytest.approx(table.loc["equal batches", "waiting"])
    assert "uneven samples is unknown" in simulate(trace).sentences[3]
