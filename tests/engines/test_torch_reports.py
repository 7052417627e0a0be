"""Rows that the ranks sent each other become one report. Axis: W workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.torch.reports import COLUMNS, LEAST_OWN, RankReports, at_shares


def taken(*rows):
    """The report of these rows, each a worker's ``(samples, micro_batches, steps, seconds, comm_seconds)``."""
    return RankReports(np.array([[*row, *[0.0] * (len(COLUMNS) - 5)] for row in rows])).report(None)


def test_a_report_is_the_mean_micro_batch_and_the_exchange_of_gradients():
    report = taken((128, 16, 2, 0.8, 0.01), (64, 16, 2, 1.6, 0.03))
    assert report.samples.tolist() == [8, 4]
    assert report.seconds.tolist() == [0.05, 0.1]
    assert report.comm_seconds.tolist() == [0.01, 0.03]


def test_a_worker_that_measured_nothing_is_unknown():
    report = taken((8, 1, 1, 0.5, 0.01), (np.nan, np.nan, np.nan, np.nan, np.nan))
    assert report.samples.tolist()[0] == 8
    assert np.isnan([report.samples[1], report.seconds[1], report.comm_seconds[1]]).all()


def test_samples_without_seconds_are_no_report():
    assert np.isnan(taken((8, 1, 1, np.nan, np.nan), (8, 1, 1, 0.0, np.nan)).speed).all()


def rows(*more, **columns):
    """Rows of two ranks in step: these columns, a sample in a second, zeros elsewhere, and more numbers behind them."""
    named = np.zeros((2, len(COLUMNS)))
    named[:, : COLUMNS.index("comm_seconds")] = 1.0
    for name, values in columns.items():
        named[:, COLUMNS.index(name)] = values
    return np.hstack([named, np.array(more, dtype=np.float64).reshape(-1, 2).T])


def test_covariates_follow_the_columns_and_features_the_covariates():
    plain, costly = RankReports(rows((1, 2), (3, 4))), RankReports(rows((1, 2), (3, 4), (5, 6)), features=2)
    assert plain.covariates_WD.tolist() == [[1, 3], [2, 4]]
    assert plain.features_WF.shape == (2, 0)
    assert costly.covariates_WD.tolist() == [[1], [2]]
    assert costly.features_WF.tolist() == [[3, 5], [4, 6]]


@pytest.mark.parametrize("name", ["checksum", "epoch", "batches", "assigned"])
def test_ranks_are_together_with_the_same_plan_at_the_same_place(name):
    assert RankReports(rows(**{name: 7})).together
    assert not RankReports(rows(**{name: (7, 8)})).together
    assert RankReports(rows(**{name: (7, 8)})).agreed == (name != "checksum")
    at = RankReports(rows(epoch=(7, 8), batches=3, assigned=(5, 6)))
    assert at.places(assigned=True).tolist() == [[7, 3, 5], [8, 3, 6]]
    assert at.places(assigned=False).tolist() == [[7, 3], [8, 3]]


def test_data_from_elsewhere_shows_by_its_mark_or_by_another_total():
    assert not RankReports(rows(total=96)).any_foreign
    assert RankReports(rows(total=96, foreign=(0, 1))).any_foreign
    assert RankReports(rows(total=(96, 95))).any_foreign


def test_at_its_share_of_work_a_worker_takes_its_fixed_time_and_the_rest_in_proportion():
    measured = RankReports(rows(samples=(20, 20), micro_batches=2, seconds=(2.2, 1.2)))
    told = measured.at_shares(np.array([20.0, 0.0]), np.array([15.0, 5.0]), fixed=0.1)
    little = measured.at_shares(np.array([0.5, 0.5]), np.array([0.5, 0.25]), fixed=0.1)
    assert told["seconds"][0] == pytest.approx(0.2 + 2.0 * 30 / 20)
    assert told["samples"][0] == 30
    assert np.isnan(told["samples"][1]), "of no work nothing is known"
    assert little["samples"].tolist() == [1.0, 0.5], "work is counted in average samples, and may be less than one"
    assert measured["seconds"][0] == 2.2, "the rows themselves stay"


def test_most_of_a_workers_time_may_be_fixed_but_never_all():
    measured = RankReports(rows(samples=20, micro_batches=1, seconds=1.0))
    told = measured.at_shares(np.array([20.0, 20.0]), np.array([40.0, 10.0]), fixed=5.0)
    assert told["seconds"] == pytest.approx([0.95 + 0.05 * 2, 0.95 + 0.05 / 2])


def test_a_rank_that_ran_out_of_memory_says_so():
    measured = {"samples": 8, "micro_batches": 1, "seconds": 0.5}
    assert RankReports(rows(**measured, out_of_memory=(0, 1))).report(None).out_of_memory.tolist() == [False, True]
    assert RankReports(rows(**measured)).report(None).out_of_memory is None


def test_a_job_of_one_rank_is_always_together():
    alone = RankReports(rows(total=96)[:1])
    assert alone.together
    assert alone.agreed
    assert not alone.any_foreign


@given(st.floats(1e-3, 1e3), st.floats(0, 1e3), st.floats(1, 10))
def test_more_work_takes_longer_but_no_more_than_in_proportion_whatever_is_taken_for_fixed(seconds, fixed, times):
    (same, more) = at_shares(np.full(2, seconds), np.ones(2), np.array([1.0, times]), fixed)
    assert same == pytest.approx(seconds)
    assert more <= seconds * times * (1 + 1e-12)
    assert more >= seconds * (1 + LEAST_OWN * (times - 1)) * (1 - 1e-12)
