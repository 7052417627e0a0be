"""What ranks report, at its limits: what counts as measured, and what becomes of it."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.predictors.report import LARGEST, SHORTEST
from paceline.torch.records import record
from paceline.torch.reports import COLUMNS, LEAST, LEAST_OWN, RankReports, at_shares

ONE = dict(zip(COLUMNS, [8.0, 4.0, 2.0, 0.5, 0.25, 0.0, 7.0, 3.0, 5.0, 9.0, 0.75, 2.5], strict=True))
MEASURED = ("samples", "micro_batches", "steps", "seconds")


def rows(*behind, features=0, **columns):
    """Rows of two ranks, of which the second says something else, each with these numbers behind the columns."""
    told = [[*ONE.values(), *behind], [*{**ONE, **columns}.values(), *behind]]
    return RankReports(np.array(told), features)


BELOW = {name: math.nextafter(limit, 0) for name, limit in (("one", 1), ("largest", LARGEST), ("shortest", SHORTEST))}


@pytest.mark.parametrize(
    ("said", "measured"),
    [
        ({}, True),
        ({"samples": 0.0}, False),
        ({"samples": -1.0}, False),
        ({"samples": 5e-324}, True),
        ({"samples": BELOW["largest"]}, True),
        ({"samples": LARGEST}, False),
        ({"samples": math.nan}, False),
        ({"steps": BELOW["one"]}, False),
        ({"steps": 1.0}, True),
        ({"steps": 4.0}, True),
        ({"steps": 4.5}, False),
        ({"micro_batches": 2.0}, True),
        ({"micro_batches": 1.5}, False),
        ({"micro_batches": BELOW["largest"]}, True),
        ({"micro_batches": LARGEST}, False),
        ({"micro_batches": math.nan}, False),
        ({"seconds": SHORTEST}, True),
        ({"seconds": BELOW["shortest"]}, False),
        ({"seconds": sys.float_info.max}, True),
        ({"seconds": math.inf}, False),
        ({"seconds": math.nan}, False),
    ],
)
def test_a_rank_has_measured_what_a_rank_can_measure_and_else_nothing_but_what_is_no_measurement(said, measured):
    given = rows(0.5, 2.0, 3.0, features=2, **said)
    wanted = {**ONE, **said}
    for name, number in wanted.items():
        unknown = not measured and name in MEASURED
        np.testing.assert_equal(given[name][1], math.nan if unknown else number)
        assert given[name][0] == ONE[name]
    assert given.covariates_WD.tolist() == [[0.5], [0.5]]
    np.testing.assert_equal(given.features_WF, [[2.0, 3.0], [2.0, 3.0] if measured else [math.nan] * 2])


@pytest.mark.parametrize(
    ("numbers", "measured"),
    [
        ((0.0, 2.0), True),
        ((2.0, BELOW["largest"]), True),
        ((2.0, LARGEST), False),
        ((-5e-324, 2.0), False),
        ((math.nan, 2.0), False),
        ((2.0, math.inf), False),
    ],
)
def test_features_of_work_are_numbers_of_at_least_0_and_covariates_may_be_any(numbers, measured):
    told_WF = np.array([[*ONE.values(), -1.0, *numbers]] * 2)
    before = told_WF.copy()
    given = RankReports(told_WF, 2)
    assert np.isfinite(given["samples"]).tolist() == [measured] * 2
    np.testing.assert_equal(told_WF, before)
    assert np.isfinite(RankReports(told_WF, 0)["samples"]).all()
    assert given.covariates_WD.tolist() == [[-1.0]] * 2


def test_the_first_rank_says_whether_norms_and_buffers_were_looked_at():
    for name, fact in (("log_norm", "has_norms"), ("buffers", "has_buffers")):
        assert getattr(rows(**{name: math.nan}), fact) is True
        turned = RankReports(rows(**{name: math.nan}).report_WF[::-1])
        assert getattr(turned, fact) is False
    assert (rows().has_norms, rows().has_buffers) == (True, True)


@pytest.mark.parametrize("name", COLUMNS)
def test_ranks_are_together_foreign_or_out_of_memory_by_these_columns_alone(name):
    differs = rows(**{name: ONE[name] + 1})
    assert differs.together == (name not in ("checksum", "epoch", "batches", "assigned"))
    assert differs.agreed == (name != "checksum")
    assert differs.any_foreign == (name in ("foreign", "total"))
    ran_out = differs.report(None).out_of_memory
    assert (None if ran_out is None else ran_out.tolist()) == ([False, True] if name == "out_of_memory" else None)


def test_a_report_is_of_micro_batches_with_the_covariates_it_is_given():
    covariates_WD = np.array([[1.0], [2.0]])
    report = rows(micro_batches=2.0).report(covariates_WD)
    assert (report.samples.tolist(), report.seconds.tolist()) == ([2.0, 4.0], [0.125, 0.25])
    assert report.comm_seconds.tolist() == [0.25, 0.25]
    assert report.covariates.tolist() == covariates_WD.tolist()


def test_at_shares_only_samples_and_seconds_change_and_features_stay_features():
    given = rows(0.5, 2.0, features=1)
    told = given.at_shares(np.array([8.0, 16.0]), np.array([3.0, 1.0]), 0.025)
    assert told["samples"].tolist() == [12.0, 4.0]
    np.testing.assert_allclose(told["seconds"], [0.1 + 0.4 * 12 / 8, 0.1 + 0.4 * 4 / 16], rtol=1e-12)
    for name in set(COLUMNS) - {"samples", "seconds"}:
        assert told[name].tolist() == given[name].tolist()
    assert (told.covariates_WD.tolist(), told.features_WF.tolist()) == ([[0.5]] * 2, [[2.0]] * 2)
    assert at_shares(np.ones(1), np.zeros(1), np.ones(1), 0.5).tolist() == [math.inf], "without a warning"
    assert math.isnan(at_shares(np.ones(1), np.zeros(1), np.zeros(1), 0.5)[0])
    assert (LEAST, LEAST_OWN) == (0.5, 0.05)


# -- records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("costly", [False, True])
def test_a_record_is_of_one_step_and_of_the_batch_handed_out_where_nothing_is_known(monkeypatch, costly):
    monkeypatch.setattr("paceline.torch.records.time.time", lambda: 123.5)
    asked = []
    curves = SimpleNamespace(busy_seconds=lambda work_W: asked.append(work_W) or np.array([0.5, 0.25]))
    used = SimpleNamespace(forecast=SimpleNamespace(curves=curves))
    work = SimpleNamespace(work=lambda features_WF: features_WF.sum(axis=1)) if costly else None
    given = rows(6.0, 4.0, features=2, seconds=math.nan)
    own = {"index": 4, "plan": "plan", "worker": "a", "wall_seconds": 2.0, "overhead_seconds": 0.5}
    one = record(given, used, np.array([1, 7]), 3, work, **own)
    assert (one.time, one.sizes.tolist(), one.sizes.dtype) == (123.5, [4, 7], np.int64)
    np.testing.assert_equal(one.seconds, [0.25, math.nan])
    np.testing.assert_equal(asked[0], [2.5, math.nan] if costly else [2.0, 7 / 3])
    np.testing.assert_equal(one.forecast_seconds, [1.0, 0.75])
    assert (one.comm_seconds.tolist(), one.agreed, one.index) == ([0.25, 0.25], True, 4)
    np.testing.assert_equal(one.work, [5.0, math.nan] if costly else None)
