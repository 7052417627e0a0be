"""What a worth gives to its replay, what it makes of it, and waiting by its cause where costs tell it."""

import importlib
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import Balanced
from paceline.eval.replay.synchronous import EQUAL, ORACLE, Replay, ReplayedIteration
from paceline.eval.waiting_costs import costs_of_waiting
from paceline.eval.worth import FixedSplit, Worth, _on_fixed, _on_forecasts, _on_waiting, obstacle, worth
from paceline.predictors import EWMA

judging = importlib.import_module("paceline.eval.worth")
NAN = float("nan")


@pytest.fixture
def replayed(monkeypatch):
    """What is asked to be replayed, and the seconds that come of it: made up, of three iterations and two workers."""
    asked = []
    seconds = {
        EQUAL: [[1.0, 4.0], [3.0, 2.0], [5.0, 1.0]],
        "fixed split": [[2.0, 3.0], [3.0, 1.0], [2.0, 2.0]],
        "ewma": [[1.0, 2.0], [2.5, 1.0], [2.0, 2.0]],
        ORACLE: [[1.5, 1.5], [2.0, 2.0], [1.5, 1.5]],
    }

    def replay(schemes, job, **how):
        asked.append((schemes, job, how))
        ran = {
            name: [ReplayedIteration(k, np.ones(2), np.array(row)) for k, row in enumerate(rows)]
            for name, rows in seconds.items()
        }
        return Replay("job", ran, skipped=0)

    monkeypatch.setattr(judging, "replay", replay)
    return asked


def test_the_last_thousand_complete_iterations_are_replayed_after_a_warm_up_of_fifty(replayed):
    rng = np.random.default_rng(0)
    samples, seconds = rng.uniform(10, 20, (1060, 2)), rng.uniform(1, 2, (1060, 2))
    seconds[1050, 0] = NAN
    samples[::3] *= 40  # the usual batch is the median
    worth(Trace(samples, seconds, workers=["a", "b"]))
    ((schemes, job, how),) = replayed
    there = [k for k in range(1060) if k != 1050]
    assert how == {"global_batch": round(median(samples[k].sum() for k in there)), "warmup": 50}
    np.testing.assert_array_equal(job.samples, samples[there[-1050:]])
    np.testing.assert_array_equal(job.seconds, seconds[there[-1050:]])
    assert job.workers == ("a", "b")
    assert list(schemes) == ["fixed split", "ewma"]
    assert schemes["fixed split"].speed.tolist() == np.median(job.speed, axis=0).tolist()
    assert isinstance(schemes["ewma"], Balanced)
    assert schemes["ewma"].predictor.configuration() == EWMA().configuration()
    assert schemes["ewma"].policy is None


@pytest.mark.parametrize(("count", "warmup"), [(20, 5), (23, 5), (199, 49), (208, 50)])
def test_a_quarter_of_a_short_job_warms_up(replayed, count, warmup):
    worth(Trace(np.full((count, 2), 8.0), np.ones((count, 2))))
    assert replayed[0][2] == {"global_batch": 16, "warmup": warmup}


def test_more_than_a_sample_for_each_can_be_divided(replayed):
    trace = Trace(np.full((20, 2), 8.0), np.ones((20, 2)))
    assert worth(trace, global_batch=3).global_batch == 3
    assert replayed[0][2]["global_batch"] == 3
    (said,) = worth(trace, global_batch=2).sentences
    assert said == (
        "There is nothing to divide: a global batch of 2 is at most one sample for each of the 2 workers; give a "
        "larger one (--global-batch) to see what balancing would gain with it."
    )
    assert len(replayed) == 1


def test_what_was_replayed_is_summed_up(replayed):
    rng = np.random.default_rng(1)
    seconds = rng.uniform(1, 3, (24, 2))
    samples = np.full((24, 2), 8.0) * [1.5, 0.5]
    found = worth(Trace(samples, seconds))
    equal, fixed, online, oracle = (4 + 3 + 5) / 3, (3 + 3 + 2) / 3, (2 + 2.5 + 2) / 3, (1.5 + 2 + 1.5) / 3
    wanted = {
        "iterations": 3,
        "global_batch": 16,
        "waiting_recorded": fmean(1 - (a + b) / 2 / max(a, b) for a, b in seconds[-3:]),
        "waiting_equal": fmean([1 - 2.5 / 4, 1 - 2.5 / 3, 1 - 3 / 5]),
        "speedup_fixed": equal / fixed,
        "speedup_online": equal / online,
        "speedup_oracle": equal / oracle,
        "forecasts_add": fixed / oracle,
    }
    told = found.to_dict()
    sentences = told.pop("sentences")
    assert told == pytest.approx(wanted)
    assert sentences == list(found.sentences)
    job = replayed[0][1]
    assert found.sentences == (
        _on_waiting(found, job.select(slice(-3, None))),
        _on_fixed(found),
        _on_forecasts(found, job),
    )
    assert str(found).split("\n") == sentences
    assert Worth(sentences=("a", "b")).to_dict() == {**dict.fromkeys(wanted), "iterations": 0, "global_batch": 0} | {
        "sentences": ["a", "b"]
    }


def test_shares_of_waiting_are_told_in_whole_percent():
    uneven = Trace(np.full((4, 2), 8.0) * [1.5, 0.5], [[1.0, 2.0]] * 4)
    found = Worth(waiting_equal=0.872, waiting_recorded=0.884, speedup_oracle=1.0)
    assert _on_waiting(found, uneven) == (
        "Equal batches wait 87 % of the time; with the recorded sizes workers wait 88 %."
    )
    most = Trace(np.full((5, 3), 8.0), [[1, 2, 3]] * 3 + [[3, 2, 1]] * 2)
    assert _on_waiting(replace(found, speedup_oracle=1.5), most) == (
        "Equal batches wait 87 % of the time, mostly for worker 2."
    )


def test_sizes_that_were_uneven_in_turn_were_even_in_the_mean():
    found = Worth(waiting_equal=0.25, waiting_recorded=0.5, speedup_oracle=1.0)
    turns = Trace(np.array([[12.0, 4.0], [4.0, 12.0]] * 2), np.ones((4, 2)))
    assert _on_waiting(found, turns) == "Equal batches wait 25 % of the time."


def test_sizes_just_at_the_limit_are_even_and_chances_just_at_theirs_are_noise(monkeypatch):
    monkeypatch.setattr(judging, "UNEVEN", 0.25)
    found = Worth(waiting_equal=0.5, waiting_recorded=0.25, speedup_fixed=1.0, speedup_online=1.25, speedup_oracle=1.5)
    job = Trace(np.tile([10.0, 6.0], (4, 1)), [[1.0, 2.0], [2.0, 1.0]] * 2)
    assert _on_waiting(found, job) == "Equal batches wait 50 % of the time."
    for chances, said in (
        ([0.01, 0.01, 0.0], "Hindsight would add 1.50x to that, but no forecast can: the speeds look like white noise"),
        ([0.01, 0.0099, 0.0], "Forecasts could add at most 1.50x to that"),
    ):
        monkeypatch.setattr(judging, "ljung_box", lambda speed, chances=chances: np.array(chances))
        assert _on_forecasts(found, job) == f"{said}; an average of past speeds (ewma) reaches 1.25x in all."


@pytest.mark.parametrize(("complete", "told"), [(19, True), (20, False)])
def test_twenty_complete_iterations_are_enough(complete, told):
    seconds = np.ones((40, 3))
    seconds[complete:, 1] = NAN
    seconds[39, 2] = NAN
    trace = Trace(np.ones((40, 3)), seconds, workers=["a", "b\x1b", "7"])
    said = obstacle(trace, trace.speed, np.isfinite(trace.speed).all(axis=1))
    assert said == told * (
        "What balancing would gain is not known: all workers reported a speed in 19 of 40 iterations, but 20 must; "
        r"b\x1b is missing in 21."
    )


def test_a_job_of_nineteen_iterations_is_short_and_one_of_twenty_may_be_incomplete():
    for count, said in (
        (19, "the trace has 19 iterations, but 20 in which all"),
        (20, "in 19 of 20 iterations, but 20"),
    ):
        seconds = np.ones((count, 2))
        seconds[19:, 0] = NAN
        trace = Trace(np.ones((count, 2)), seconds)
        found = obstacle(trace, trace.speed, np.isfinite(trace.speed).all(axis=1))
        assert said in found
        assert ("worker 0 is missing in 1." in found) == (count == 20)


def test_a_fixed_split_gives_everyone_a_sample_and_keeps_to_its_speeds():
    split = FixedSplit(np.array([100.0, 1.0]))
    split.reset(["a", "b"], 12)
    assert split.covariate_names == ()
    assert split.sizes(0, None).tolist() == [11, 1]
    split.observe(split.sizes(0, None), np.array([9.0, 1.0]), None)
    assert split.sizes(1, None).tolist() == [11, 1]
    split.reset(["a", "b"], 202)
    assert split.sizes(2, None).tolist() == [200, 2]


# -- the costs of waiting --------------------------------------------------------------------------------------------


def test_samples_that_cost_more_in_turn_are_taken_away_before_noise():
    """One of two workers has samples of thrice the cost, in turn; later it is half as fast too, and noisy."""
    cost = np.tile([[3.0, 1.0], [1.0, 3.0]], (12, 1))
    assert costs_of_waiting(cost, cost) == pytest.approx((1 / 3, 0, 0))
    slow = cost * [1.0, 2.0]
    # Equal batches take 3 and 6 in turn; alike samples 4; both in step 2 * 2 / (1 / 2 + 1 / 4) = 8 / 3.
    assert costs_of_waiting(slow, cost) == pytest.approx((1 - 4 / 4.5, (4 - 8 / 3) / 4.5, 0))
    noisy = slow * np.where(np.arange(24)[:, None] % 12 == 5, [1.0, 1.5], 1.0)
    pace = noisy / (cost / 2)
    whole, alike = noisy.max(axis=1).sum(), pace.max(axis=1).sum()
    lasting = 8 / 3 * (22 + 2 * 1.5)
    best = (2 / (1 / pace).sum(axis=1)).sum()
    wanted = ((whole - alike) / whole, (alike - lasting) / whole, (lasting - best) / whole)
    assert min(wanted) > 0
    assert costs_of_waiting(noisy, cost) == pytest.approx(wanted)
