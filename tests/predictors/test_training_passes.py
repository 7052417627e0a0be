"""Passes over traces that collect windows: what is told, how many shards, and where a killed one goes on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from test_survey_law import trace

from paceline.predictors.fitting import Fitting, Survey
from paceline.predictors.fitting.kept import Kept
from paceline.predictors.networks.neural import Examples
from paceline.predictors.networks.training_passes import collected, require_both


def parts_of(one):
    speeds = one.speed[np.isfinite(one.speed)]
    yield Examples(speeds[:, None], speeds, np.arange(len(speeds)) % 2 == 0)


class After(list):
    """Traces that can be read from a later one on."""

    def after(self, count):
        self.skipped = count
        return self[count:]


def test_windows_are_collected_trace_by_trace_and_told(monkeypatch):
    now = iter([10.0, 11.0, 14.0, 20.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    traces, told = [trace(0), trace(1, file="b.csv"), trace(2, job="third")], []
    windows = collected(traces, Survey.of(traces), Fitting(tell=told.append), parts_of)
    assert windows.names == ["trace", "b.csv", "third"]
    told = [(one.stage, one.done, one.total, one.rate) for one in told]
    assert told == [("windows", 1, 3, 1.0), ("windows", 2, 3, 0.5), ("windows", 3, 3, 0.3)]
    (records,) = (shard() for shard in windows.shards)
    expected = np.concatenate([one.speed[np.isfinite(one.speed)] for one in traces])
    np.testing.assert_allclose(records["targets"], expected, rtol=1e-6)


@pytest.mark.parametrize("per_speed", [1, 3])
def test_shards_are_as_many_as_the_most_windows_of_each_speed_may_need(per_speed):
    traces = [trace(k, iterations=30) for k in range(3)]
    speeds, item = Survey.of(traces).speeds, 16
    for memory in (speeds * item, speeds * item * per_speed, speeds * item * per_speed - 1):
        windows = collected(traces, Survey.of(traces), Fitting(memory=memory), parts_of, per_speed)
        assert windows.kind.itemsize == item
        assert len(windows.shards) == math.ceil(speeds * per_speed * item / memory)
        shard_N = np.random.default_rng(0).integers(len(windows.shards), size=speeds)
        if len(windows.shards) > 1:
            assert list(windows.counts) == np.bincount(shard_N).tolist()


@pytest.mark.parametrize("kind", [list, After])
def test_a_collection_goes_on_after_the_traces_that_were_noted(tmp_path, kind, monkeypatch):
    traces, told = kind([trace(k) for k in range(4)]), []
    fitting = Fitting(folder=tmp_path, checkpoint_seconds=0.0, identity="one", tell=told.append)

    def breaking(one):
        if one is traces[2]:
            raise KeyboardInterrupt
        return parts_of(one)

    with pytest.raises(KeyboardInterrupt):
        collected(traces, Survey.of(traces), fitting, breaking)
    assert Kept(fitting.reading("windows"), "one", 0.0).names == ["trace", "trace"]
    told.clear()
    now = iter([0.0, 2.0, 8.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    seen = []
    windows = collected(traces, Survey.of(traces), fitting, lambda one: seen.append(one) or parts_of(one))
    assert [any(one is other for other in seen) for one in traces] == [False, False, True, True]
    assert [(one.done, one.total, one.rate) for one in told] == [(3, 4, 0.5), (4, 4, 0.25)]
    assert getattr(traces, "skipped", 2) == 2
    assert len(windows) == Survey.of(traces).speeds
    told.clear()
    again = collected(traces, Survey.of(traces), fitting, breaking)
    assert told == []
    assert len(again) == len(windows)
    assert Kept(fitting.reading("windows"), "other", 0.0).names == []


def test_too_few_windows_are_told_with_what_they_are_too_few_for():
    few, enough = SimpleNamespace(too_few=True), SimpleNamespace(too_few=False)
    assert require_both(enough, Fitting(), Survey.of([trace(0)])) is None
    for count, shown in ((1, "[6]"), (10, f"[{', '.join(['6'] * 10)}]"), (11, f"[{', '.join(['6'] * 9)}], ...")):
        told = Survey.of([trace(0)] * count)
        for what in ("", "4 lags"):
            with pytest.raises(ValueError, match="too short") as error:
                require_both(few, Fitting(), told, what)
            assert str(error.value) == f"traces of {shown} iterations are too short to fit {what}".rstrip()
    for length, says in ((10, "too short"), (11, "of 2 workers 1 are held out, and one part has no window: hold out")):
        with pytest.raises(ValueError, match=says):
            require_both(few, Fitting(held_out=frozenset({"b"})), Survey.of([trace(0, iterations=length), trace(1)]))
    with pytest.raises(ValueError, match="too short"):
        require_both(few, Fitting(), Survey.of([trace(0, iterations=11)]))
