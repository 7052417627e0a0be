"""What ranks measured between two plans becomes one report. Axes: K exchanges, W workers."""

import numpy as np
import pytest

from paceline.coordinator.torch.reporting.reports import COLUMNS, RankReports, ReportTally


def taken(*exchanges):
    """The report of these exchanges, each a worker's ``(samples, micro_batches, steps, seconds, comm_seconds)``."""
    tally = ReportTally()
    for rows in exchanges:
        tally.add(RankReports(np.array([[*row, *[0.0] * (len(COLUMNS) - 5)] for row in rows])))
    return tally.take(None)


def test_a_report_is_the_mean_micro_batch_and_the_mean_exchange_of_gradients():
    report = taken([(128, 16, 2, 0.8, 0.01)], [(128, 16, 2, 1.6, 0.03)])
    assert report.samples == pytest.approx([8])
    assert report.seconds == pytest.approx([2.4 / 32])
    assert report.comm_seconds == pytest.approx([0.02])


def test_what_one_exchange_lacks_another_gives_and_what_none_has_is_unknown():
    lacking = (np.nan, np.nan, np.nan, np.nan, np.nan)
    report = taken([(8, 1, 1, 0.5, 0.01), lacking], [lacking, lacking])
    assert report.samples.tolist()[0] == 8
    assert report.comm_seconds[0] == pytest.approx(0.01)
    assert np.isnan([report.samples[1], report.seconds[1], report.comm_seconds[1]]).all()


def test_samples_without_seconds_are_no_report():
    report = taken([(8, 1, 1, np.nan, np.nan)], [(8, 1, 1, 0.0, np.nan)])
    assert np.isnan(report.speed).all()
