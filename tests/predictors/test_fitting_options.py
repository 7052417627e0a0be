"""Options of a fit: what they are by default, who is held out, and how a predictor is fitted."""

import math
from pathlib import Path

import numpy as np
import pytest
from test_survey_law import trace

from paceline.predictors import EWMA, BatchTime, LastValue
from paceline.predictors.fitting import Fitting, Moment, Survey
from paceline.predictors.fitting.how import fit_with, streams
from paceline.predictors.reference import Spread


def test_a_plain_fit_keeps_nothing_holds_out_nobody_and_tells_nobody():
    plain = Fitting()
    assert (plain.survey, plain.warm, plain.held_out, plain.folder) == (None, False, None, None)
    assert (plain.checkpoint_seconds, plain.identity, plain.device) == (60.0, "", "cpu")
    assert (plain.mixed, plain.distributed, plain.memory) == (False, False, 100 * 2**20)
    assert plain.tell(Moment("read", 0, 1)) is None
    told = Moment("read", 1, 3)
    assert all(math.isnan(value) for value in (told.rate, told.loss, told.held_out, told.seconds_left))


def test_what_was_read_lies_in_a_folder_for_each_process(monkeypatch):
    alone, together = (Fitting(folder=Path("here"), distributed=of) for of in (False, True))
    monkeypatch.delenv("RANK", raising=False)
    assert alone.reading("windows") == together.reading("windows") == Path("here/reading-0/windows")
    monkeypatch.setenv("RANK", "3")
    assert alone.reading("survey") == Path("here/reading-0/survey")
    assert together.reading("survey") == Path("here/reading-3/survey")


def test_a_part_of_a_fit_has_a_folder_of_its_own_or_none():
    whole = Fitting(folder=Path("here"), identity="one", memory=7)
    assert whole.part("inner") == Fitting(folder=Path("here/inner"), identity="one", memory=7)
    assert Fitting(warm=True).part("inner").folder is None


def test_a_survey_that_is_known_is_not_made_again():
    known = Survey.of([trace(0)])
    assert Fitting(survey=known).surveyed([]) is known
    of_all, of_a = (Fitting(held_out=out).surveyed([trace(0)]) for out in (None, frozenset({"b"})))
    assert of_all == known
    assert of_a.covariates["load"] == Spread.of(trace(0).covariates[:, :1, 0])


@pytest.mark.parametrize(("validation", "first"), [(0.2, 8), (0.25, 8), (0.5, 5), (0.95, 1), (0.05, 10)])
def test_the_last_share_of_a_trace_validates_and_without_held_out_workers_everyone_is_used(validation, first):
    roles = list(Fitting().roles(trace(0, iterations=10), validation))
    assert [late for _, late in roles] == [k >= first for k in range(10)]
    assert all(used_W.tolist() == [True, True] for used_W, _ in roles)
    held = list(Fitting(held_out=frozenset({"b", "z"})).roles(trace(0, iterations=10), validation))
    assert [(used_W.tolist(), late) for used_W, late in held] == [
        ([k < first, k >= first], k >= first) for k in range(10)
    ]


def test_traces_are_kept_without_their_held_out_workers():
    traces = [trace(0), trace(1, ("b",)), trace(2, ("c", "b", "d"))]
    assert [one is other for one, other in zip(Fitting().kept(traces), traces, strict=True)] == [True] * 3
    first, last = Fitting(held_out=frozenset({"b"})).kept(traces)
    assert (first.workers, last.workers) == (("a",), ("c", "d"))
    np.testing.assert_array_equal(last.seconds, traces[2].seconds[:, [0, 2]])
    (same,) = Fitting(held_out=frozenset({"z"})).kept(traces[:1])
    assert same is traces[0]


class Streamed(LastValue):
    def fit_streamed(self, traces, fitting):
        self.asked = traces, fitting
        return self


class Alone(Streamed):
    def fit(self, traces):
        self.listed = traces
        return self


def test_a_predictor_is_fitted_by_the_nearest_of_its_two_ways():
    assert [streams(one) for one in (Streamed(), Alone(), EWMA(), LastValue(), object())][:2] == [True, False]
    assert streams(EWMA())
    assert not streams(object())
    stream, fitting = iter([trace(0)]), Fitting(held_out=frozenset({"b"}))
    one = Streamed()
    fit_with(one, stream, fitting)
    assert one.asked == (stream, fitting)
    other = Alone()
    fit_with(other, stream, fitting)
    assert isinstance(other.listed, list)
    assert [one.workers for one in other.listed] == [("a",)]
    with pytest.raises(
        ValueError, match=r"^Alone defines fit alone, which begins afresh: without fit_streamed it cannot"
    ):
        fit_with(Alone(), [], Fitting(warm=True))
    never = LastValue()
    fit_with(never, [trace(0)], Fitting(warm=True))  # it learns nothing, so there is nothing to begin afresh


def test_the_relative_speed_of_batch_times_is_fitted_to_traces_of_its_own_with_what_it_was_asked():
    model, speed = BatchTime(), Streamed()
    model._relative = speed
    model.fit_streamed([trace(0)], Fitting(held_out=frozenset({"b"}), survey=Survey.of([trace(0)]), memory=7))
    traces, fitting = speed.asked
    assert fitting == Fitting(memory=7)
    assert [one.workers for one in traces] == [("a",)]


@pytest.mark.parametrize(
    ("rate", "left"), [(0.5, 6.0), (1.0, 3.0), (1e-9, 3e9), (0.0, math.nan), (-1.0, math.nan), (math.nan, math.nan)]
)
def test_the_seconds_left_are_those_at_this_rate(rate, left):
    assert Moment("train", 2, 5, rate=rate).seconds_left == pytest.approx(left, nan_ok=True)
