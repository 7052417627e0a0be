"""What balancing is worth on a recorded job, and what is said if a trace allows no answer."""

import json

import numpy as np
import pytest

from paceline.datasets import Trace, recorded
from paceline.eval import Balanced, replay, worth
from paceline.eval.worth import LONGEST, WARMUP, FixedSplit
from paceline.predictors import EWMA

NAN = float("nan")


def job(seconds_TW, samples=64, **more):
    """A job of equal batches whose workers took so long."""
    seconds_TW = np.asarray(seconds_TW, dtype=float)
    return Trace(np.broadcast_to(samples, seconds_TW.shape), seconds_TW, **more)


def noise(iterations=400, workers=4, spread=0.02, seed=0):
    return np.random.default_rng(seed).uniform(1 - spread, 1 + spread, (iterations, workers))


@pytest.mark.slow
def test_a_constant_straggler_is_worth_a_fixed_split_though_there_is_nothing_to_predict():
    """Four workers, one at half the speed: equal batches take 2, balanced ones 4 / 3.5."""
    found = worth(job(noise() * [0.1, 0.1, 0.1, 0.2], workers=["a", "b", "c", "d"]))
    assert found.waiting_equal == pytest.approx(1 - (3 * 0.5 + 1) / 4, abs=0.01)
    assert found.speedup_fixed == pytest.approx(2 / (4 / 3.5), rel=0.02)
    assert found.speedup_online == pytest.approx(found.speedup_fixed, rel=0.02)
    assert 1 <= found.forecasts_add < 1.02
    waiting, fixed, forecasts = found.sentences
    assert waiting == "Equal batches wait 37 % of the time, mostly for d."
    times = f"{found.speedup_fixed:.2f}x"
    assert (
        fixed
        == f"A fixed split by each worker's usual speed would make iterations {times} as fast, without any forecast."
    )
    assert forecasts.startswith("Forecasts could add next to nothing to that (at most 1.0")


@pytest.mark.slow
def test_a_straggler_that_changes_is_worth_forecasts_and_no_fixed_split():
    turns = np.repeat(np.tile([[0.1, 0.2], [0.2, 0.1]], (4, 1)), 50, axis=0)
    found = worth(job(turns * noise(400, 2)))
    assert found.speedup_fixed == pytest.approx(1.0, abs=0.02)
    assert found.speedup_oracle == pytest.approx(1.5, rel=0.02)
    assert found.speedup_fixed < found.speedup_online < found.speedup_oracle
    assert "next to nothing" in found.sentences[1]
    assert found.sentences[2].startswith(f"Forecasts could add at most {found.forecasts_add:.2f}x to that; ")


@pytest.mark.slow
def test_of_white_noise_it_is_said_that_hindsight_alone_could_gain():
    found = worth(job(0.1 * noise(spread=0.3)))
    assert found.speedup_oracle > 1.1
    assert "but no forecast can: the speeds look like white noise" in found.sentences[2]


@pytest.mark.slow
def test_where_nobody_waits_there_is_nothing_to_gain():
    found = worth(job(0.1 * noise(spread=0.001)))
    assert found.sentences[0] == "Equal batches wait 0 % of the time."
    assert found.sentences[2] == "Even speeds known in advance would gain no more than 1.00x."


@pytest.mark.slow
def test_the_numbers_are_those_of_the_replay():
    trace = recorded.load("digits-mlp-steady").select(slice(-LONGEST - WARMUP, None))
    found = worth(trace)
    table = replay({"ewma": Balanced(EWMA())}, trace).table.set_index("scheme")
    assert found.speedup_online == pytest.approx(table.loc["ewma", "speed-up"])
    assert found.speedup_oracle == pytest.approx(table.loc["oracle", "speed-up"])
    assert found.waiting_equal == pytest.approx(table.loc["equal batches", "waiting"])
    assert found.global_batch == trace.samples[0].sum()
    assert found.iterations == LONGEST


@pytest.mark.slow
def test_sizes_that_were_balanced_when_recorded_are_told_beside_equal_ones():
    found = worth(Trace(np.tile([80.0, 40.0], (100, 1)), 0.1 * noise(100, 2)))
    assert found.waiting_recorded == pytest.approx(0, abs=0.03)
    assert found.waiting_equal == pytest.approx(0.25, abs=0.02)
    assert found.sentences[0].endswith("; with the recorded sizes workers wait 1 %.")


@pytest.mark.slow
def test_no_fixed_split_beats_hindsight_and_the_sizes_of_a_fixed_split_never_change():
    scheme = FixedSplit(np.array([100.0, 50.0]))
    scheme.reset(["a", "b"], 60)
    assert scheme.sizes(0, None).tolist() == scheme.sizes(9, None).tolist() == [40, 20]
    for seed in range(5):
        assert worth(job(noise(60, 3, 0.5, seed))).forecasts_add >= 1.0


@pytest.mark.slow
def test_iterations_that_not_all_workers_reported_are_left_out():
    seconds = noise(100, 3) * [0.1, 0.1, 0.2]
    seconds[::2, 1] = NAN
    found = worth(job(seconds))
    assert found.iterations == 50 - 50 // 4
    assert found.speedup_fixed == pytest.approx(worth(job(seconds[1::2])).speedup_fixed)


HALF_MISSING = np.where(np.arange(100)[:, None] % 10 < [10, 1], 0.1, NAN)


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (job(np.full((50, 2), NAN)), "What balancing would gain is not known: no speed was measured."),
        (job(noise(50, 1)), "There is nothing to balance: the job has one worker"),
        (job(noise(19, 2)), "What balancing would gain is not known: the trace has 19 iterations, but 20"),
        (
            job(HALF_MISSING),
            "all workers reported a speed in 10 of 100 iterations, but 20 must; worker 1 is missing in 90.",
        ),
        (
            job(noise(50, 4), samples=1),
            "a global batch of 4 is at most one sample for each of the 4 workers; give a larger",
        ),
        (job(noise(50, 4), samples=0.01), "There is nothing to divide: a global batch of 0"),
    ],
    ids=["no speed", "one worker", "short", "hardly complete", "one sample each", "less than one"],
)
def test_what_a_trace_does_not_tell_is_said_in_a_sentence(trace, sentence):
    found = worth(trace)
    (said,) = found.sentences
    assert sentence in said
    assert "nan" not in str(found)
    about = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert about["speedup_fixed"] is about["forecasts_add"] is None


@pytest.mark.slow
def test_of_a_job_of_one_sample_each_a_larger_batch_can_be_asked_about():
    trace = job(noise() * [0.1, 0.1, 0.1, 0.2], samples=1)
    assert worth(trace, global_batch=400).speedup_fixed == pytest.approx(1.73, abs=0.02)
    assert "a global batch of 3 " in str(worth(trace, global_batch=3))


def test_names_from_a_file_are_made_safe_to_show():
    found = worth(job(noise(50, 2) * [1, 2], workers=["a", "b\x1b[2J"]))
    assert r"mostly for b\x1b[2J." in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(("off", "said"), [(0.04, False), (0.06, True)])
def test_what_recorded_sizes_let_workers_wait_is_said_beyond_a_twentieth(off, said):
    sizes = 64.0 * np.array([1 + off, 1 - off])
    first = worth(job(noise(workers=2) * sizes / 640.0, samples=sizes)).sentences[0]
    assert ("with the recorded sizes workers wait" in first) == said
