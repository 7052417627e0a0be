"""Replays and their tables against what a few lines of arithmetic give."""

import math
from statistics import fmean

import numpy as np
import pytest

from paceline._curves import Curves
from paceline.coordinator import Policy
from paceline.datasets import Trace
from paceline.eval import Balanced, BareSplit, EqualBatches, replay
from paceline.eval.replay.synchronous import Replay, ReplayedIteration, Replays, iter_replay
from paceline.predictors import Forecast, LastValue

NAN = float("nan")


def trace_of(*speeds, **more):
    speed_TW = np.array(speeds, dtype=float).T
    return Trace(np.ones_like(speed_TW), 1 / speed_TW, **more)


class Lost(LastValue):
    """Forgets in the third iteration what it knew."""

    asked = 0

    def reset(self, workers):
        self.asked = 0
        super().reset(workers)

    def predict(self, covariates=None, *, horizon=1):
        self.asked += 1
        ahead = super().predict(covariates, horizon=horizon)
        return Forecast(ahead.speed * (NAN if self.asked == 3 else 1.0), ahead.spread)


def test_a_replay_names_the_iteration_whose_forecast_is_none():
    trace = trace_of([1.0] * 9, [2.0] * 9, workers=["a", "b"])
    for scheme, said in ((BareSplit(Lost()), "iteration 2"), (Balanced(Lost()), r"iteration \d")):
        with pytest.raises(ValueError, match=f"Lost forecast nan samples/s for worker a in {said}: "):
            replay({"lost": scheme}, trace, global_batch=30, warmup=0)


def test_a_replay_scores_what_follows_the_warm_up_and_counts_what_it_skips_there():
    speeds = np.array([[1, 1], [NAN, 1], [2, 1], [1, NAN], [1, 4], [1, 1]], dtype=float)
    trace = Trace(np.full((6, 2), 12.4), 12.4 / speeds, meta={"job": "gaps"})
    found = replay({}, trace, warmup=2)
    assert (found.trace, found.global_batch, found.skipped, found.note) == ("gaps", 25, 1, "")
    assert [one.number for one in found.iterations["oracle"]] == [2, 4, 5]
    assert [one.sizes.tolist() for one in found.iterations["oracle"]] == [[17, 8], [5, 20], [13, 12]]
    assert found.seconds("equal batches").tolist() == [12, 13, 13]
    assert [one.waiting for one in found.iterations["equal batches"]] == pytest.approx(
        [1 - (6.5 + 12) / 2 / 12, 1 - (13 + 3) / 2 / 13, 1 - 12.5 / 13]
    )
    with pytest.raises(ValueError, match=r"'gaps' has no iteration after a warm-up of 3 in which all workers reported"):
        replay({}, trace.select(slice(4)), warmup=3)
    with pytest.raises(ValueError, match=r"must not use the names \['equal batches', 'oracle'\], which are always"):
        replay({"oracle": EqualBatches(), "equal batches": EqualBatches()}, trace, warmup=0)
    few = replay({}, trace_of([1, 1], [2, 2], meta={"job": "few"}), warmup=0)
    assert few.note == (
        "few: replayed with a global batch of 200, because the recorded one of 2 cannot be divided finely among 2 "
        "workers; give another with global_batch"
    )


def test_with_curves_a_size_takes_its_time_on_them_divided_by_the_relative_speed():
    curves = Curves(np.array([3.0, 0.0]), np.array([0.5, 1.0]), np.array([1.0, 2.0]), np.full(2, math.inf))
    trace = trace_of([1.0, 2.0], [1.0, 0.5])
    ran = list(iter_replay(EqualBatches(), trace, global_batch=6, curves=curves))
    assert [one.seconds.tolist() for one in ran] == [[3.0, 5.0], [1.5, 10.0]]
    found = replay({}, trace, global_batch=6, warmup=0, curves=curves)
    assert found.seconds("equal batches").tolist() == [5.0, 10.0]
    assert [one.sizes.tolist() for one in found.iterations["oracle"]] == [[5, 1], [5, 1]]


def test_balanced_sizes_follow_the_policy_that_is_given():
    trace = trace_of([1.0] * 20, [3.0] * 20)
    replayed = replay({"capped": Balanced(LastValue(), Policy(batch_multiple=4))}, trace, global_batch=48, warmup=10)
    assert {tuple(one.sizes.tolist()) for one in replayed.iterations["capped"]} == {(12, 36)}


def made_replay(name, note=""):
    rng = np.random.default_rng(len(name))
    ran = {
        scheme: [ReplayedIteration(k, np.ones(2, int), row) for k, row in enumerate(rng.uniform(1, 2, (5, 2)))]
        for scheme in ("equal batches", "mine", "oracle")
    }
    return Replay(name, ran, skipped=0, note=note)


def test_tables_of_replays_are_means_over_iterations_and_geometric_means_over_jobs():
    both = Replays({"a": made_replay("a"), "other": made_replay("other", note="so")})
    rows = []
    for name, one in both.replays.items():
        times = {scheme: [max(i.seconds) for i in ran] for scheme, ran in one.iterations.items()}
        own = [
            {
                **{"trace": name, "scheme": scheme, "mean": fmean(taken), "p95": np.quantile(taken, 0.95)},
                "waiting": fmean(1 - fmean(i.seconds) / max(i.seconds) for i in one.iterations[scheme]),
                "speed-up": fmean(times["equal batches"]) / fmean(taken),
                "regret": fmean(taken) / fmean(times["oracle"]) - 1,
            }
            for scheme, taken in times.items()
        ]
        rows += sorted(own, key=lambda row: row["mean"])
    told = both.per_trace.to_dict("records")
    for row, wanted in zip(told, rows, strict=True):
        assert row == pytest.approx(wanted)
    overall = both.overall.to_dict("records")
    assert [row["speed-up"] for row in overall] == sorted((row["speed-up"] for row in overall), reverse=True)
    for row in overall:
        of = [one for one in rows if one["scheme"] == row["scheme"]]
        assert row == pytest.approx(
            {
                "scheme": row["scheme"],
                "waiting": fmean(one["waiting"] for one in of),
                "speed-up": math.sqrt(of[0]["speed-up"] * of[1]["speed-up"]),
                "regret": math.sqrt((1 + of[0]["regret"]) * (1 + of[1]["regret"])) - 1,
            }
        )
    assert both.notes == ["so"]
