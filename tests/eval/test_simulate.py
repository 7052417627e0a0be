"""A saving that is said beforehand: its parts, its interval, and what cannot be told."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import Policy
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.datasets import Trace
from paceline.eval import Balanced, from_profiles, from_speeds, replay, simulate
from paceline.eval.waiting_costs import costs_of_waiting
from paceline.predictors import Auto

SEEDS = st.integers(0, 2**32 - 1)


def job(pace, noise=0.02, iterations=200, seed=0, **more):
    """A job of equal batches of 64 whose workers take so long for one, with noise."""
    rng = np.random.default_rng(seed)
    seconds_TW = np.asarray(pace) * np.exp(noise * rng.standard_normal((iterations, np.shape(pace)[-1])))
    return Trace(np.full(seconds_TW.shape, 64.0), seconds_TW, **more)


def parts(found):
    return found.slow_machines, found.uneven_samples, found.noise


@pytest.mark.slow
def test_the_saving_is_that_of_the_balancer_of_a_live_job():
    trace = job([0.1, 0.1, 0.2])
    policy = Policy(batch_multiple=default_batch_multiple(192, 3))
    table = replay({"live": Balanced(Auto(), policy)}, trace).table.set_index("scheme")
    found = simulate(trace)
    assert found.saving == pytest.approx(1 - 1 / table.loc["live", "speed-up"])
    assert found.hindsight == pytest.approx(1 - 1 / table.loc["oracle", "speed-up"])


def test_a_job_defaults_to_the_same_batch_multiple_as_a_live_one():
    torch, usual = pytest.importorskip("torch"), pytest.importorskip("paceline.engines.torch.usual")
    for batch in (*range(2, 200), 256, 512, 768, 1000, 4096, 12_288):
        loader = SimpleNamespace(coefficients=None, global_batch=batch, world_size=4, micro_batch=None)
        policy = usual.policy_for(torch.nn.Linear(1, 1), loader, None)
        assert policy.batch_multiple == default_batch_multiple(batch, 4)


@settings(max_examples=10)
@given(SEEDS, st.integers(2, 5))
def test_the_parts_add_up_to_what_hindsight_saves_and_none_is_negative(seed, workers):
    rng = np.random.default_rng(seed)
    seconds_TW = np.exp(rng.normal(size=workers) + rng.uniform(0, 0.5) * rng.normal(size=(60, workers)))
    cost_TW = rng.uniform(0.5, 2, size=(60, workers))
    cost_TW /= cost_TW.mean(axis=1, keepdims=True)
    for cost in (np.ones_like(cost_TW), cost_TW):
        shares = costs_of_waiting(seconds_TW, cost)
        assert min(shares) >= 0
        hindsight = 1 - (workers / (cost / seconds_TW).sum(axis=1)).sum() / seconds_TW.max(axis=1).sum()
        assert sum(shares) == pytest.approx(max(hindsight, 0))


@pytest.mark.slow
def test_each_cause_is_told_from_the_others():
    slow, noisy = simulate(job([0.1, 0.1, 0.2])), simulate(job([0.1, 0.1, 0.1], noise=0.2))
    assert slow.slow_machines > 0.9 * slow.hindsight
    assert slow.slowest == "2"
    assert slow.pays
    assert noisy.noise > 0.9 * noisy.hindsight
    assert not noisy.pays
    work = 64 * np.random.default_rng(1).uniform(0.5, 1.5, size=(200, 3))
    alike = job([0.1, 0.1, 0.1], noise=0.0)
    uneven = simulate(Trace(alike.samples, alike.seconds * work / 64, work=work))
    assert uneven.uneven_samples > 0.9 * uneven.hindsight
    assert "uneven samples" in str(uneven)


@pytest.mark.slow
def test_bursts_that_last_are_slow_machines():
    slow_TW = np.where((np.arange(400) // 40 % 2 == 1)[:, None], [0.1, 0.2], 0.1)
    found = simulate(job(slow_TW, iterations=400))
    assert found.slow_machines > 0.9 * found.hindsight
    assert found.high - found.low > 0.05, "ten stretches are little to go by"
    steady = simulate(job([0.1, 0.2], iterations=400))
    assert steady.high - steady.low < 0.03


@pytest.mark.slow
def test_an_exchange_that_was_recorded_is_part_of_the_time():
    trace = job([0.1, 0.2])
    beside = simulate(Trace(trace.samples, trace.seconds, comm_seconds=np.full(trace.seconds.shape, 0.2)))
    alone = simulate(trace)
    assert beside.saving == pytest.approx(alone.saving / 2, rel=0.05)
    assert sum(parts(beside)) == pytest.approx(sum(parts(alone)) / 2, rel=0.05)


@pytest.mark.slow
def test_of_usual_speeds_the_interval_spans_other_noise():
    found = from_speeds([100, 100, 50])
    assert found.slow_machines == pytest.approx(1 - 2 / 5 * 1.5, abs=0.03)  # 2/50 against 3/250 of the samples
    assert found.low < found.saving < found.high
    assert found.assumed
    quiet = from_speeds([100, 100, 50], noise=0.0)
    assert quiet.noise == pytest.approx(0, abs=1e-3)
    assert from_speeds([1e-3, 1e-3, 5e-4], noise=0.0).saving == pytest.approx(quiet.saving)


@pytest.mark.slow
def test_few_iterations_stand_for_usual_speeds():
    few = simulate(job([0.1, 0.1, 0.2], iterations=10, noise=0.0))
    assert "of 10 measurements" in few.assumed[0]
    assert few.saving == pytest.approx(from_speeds([2, 2, 1], global_batch=192).saving)


@pytest.mark.slow
def test_profiles_say_what_a_mixed_fleet_saves(tmp_path):
    for name, factor in (("fast", 1), ("slow", 2)):
        rows = [f"x,d,m,{size},{factor * (0.006 + 0.0005 * size)},," for size in (8, 32, 64, 128, 256)]
        (tmp_path / f"{name}.csv").write_text("source,device,model,batch,seconds,comm_seconds,held\n" + "\n".join(rows))
    both = {tmp_path / "fast.csv": 2, tmp_path / "slow.csv": 1}
    found = from_profiles(both, global_batch=192, noise=0.01)
    # Equal: 2 (6 + 32) = 76 ms. Balanced: t with 2 (t - 6) / .5 + (t - 12) / 1 = 192, 45.6 ms.
    assert found.hindsight == pytest.approx(1 - 45.6 / 76, abs=0.02)
    assert found.saving > 0.9 * found.hindsight
    assert found.slowest == "slow-0"
    slow = tmp_path / "slow.csv"
    slow.write_text(f"{slow.read_text()}\nx,d,m,512,,,")
    with pytest.raises(ValueError, match="share of 300 samples does not fit into the memory of slow-0, whose largest"):
        from_profiles(both, global_batch=900)


@pytest.mark.slow
def test_the_interval_narrows_with_the_recording_and_says_so_in_words():
    found = simulate(job([0.1, 0.2], iterations=400))
    assert str(found).startswith(f"Balancing would save {100 * found.saving:.1f} % of the time (90 % interval: ")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["sentences"] == list(found.sentences)
    nothing = simulate(job([0.1, 0.1]))
    assert nothing.sentences[0].endswith("next to nothing.")


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (Trace(np.ones((50, 2)), np.full((50, 2), np.nan)), "no speed was measured"),
        (job([0.1]), "the job has one worker"),
        (job([0.1], iterations=3), "the job has one worker"),
        (
            Trace(np.where(np.eye(2)[np.arange(60) % 2] > 0, 1, np.nan), np.ones((60, 2))),
            "all workers reported a speed in 0",
        ),
    ],
    ids=["no speed", "one worker", "one worker, briefly", "never together"],
)
def test_what_cannot_be_told_is_refused_in_a_sentence(trace, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate(trace)


def test_bad_numbers_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="speeds must be positive numbers, one for each worker, got"):
        from_speeds([100, -1])
    with pytest.raises(ValueError, match=r"noise must lie in \[0, 1\]"):
        from_speeds([100, 50], noise=2)
    with pytest.raises(ValueError, match="a global batch of 2 is at most one sample"):
        simulate(job([0.1, 0.2]), global_batch=2)
