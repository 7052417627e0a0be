"""Readers of resource usage, each on a small file made in the layout that the set documents."""

import numpy as np
import pytest
from readings import DSTAT, DSTAT_ROW, NAN, SAR, covariate, only

from paceline.datasets import read_traces


def test_sar_machines_on_ten_second_grid(made):
    trace = only(made("sar.csv", SAR))
    assert trace.workers == ("m_1", "m_2")
    np.testing.assert_array_equal(covariate(trace, "%user"), [[50, NAN], [NAN, 70], [52, NAN]])
    assert np.isnan(trace.speed).all()
    assert trace.meta["dropped"] == "nothing"
    assert trace.meta["rows_read"] == "4"
    assert trace.meta["period_seconds"] == "10"


def test_a_longer_period_averages_the_rows_within_it(made):
    trace = only(made("sar.csv", SAR), period=30)
    np.testing.assert_array_equal(covariate(trace, "%idle"), [[41, 62]])
    np.testing.assert_array_equal(covariate(trace, "%user"), [[51, 70]])
    assert "2 rows were averaged" in trace.meta["changed"]


def test_shuffled_repeated_rows_give_same_trace(made):
    header, *rows = SAR.splitlines()
    shuffled = "\n".join([header, *rows[::-1], rows[0], rows[0]]) + "\n"
    trace, again = only(made("sar.csv", SAR)), only(made("sar2.csv", shuffled))
    np.testing.assert_array_equal(again.select(workers=trace.workers).covariates, trace.covariates)
    assert "2 rows were averaged" in again.meta["changed"]


def test_dstat_skips_boot_mean_and_nul_bytes(made):
    rows = DSTAT_ROW.format(50) + DSTAT_ROW.format(1.5) + DSTAT_ROW.format(2.5)
    trace = only(made("dstat.csv", (DSTAT + rows + "3.5,1,9").encode() + b"\0" * 50))
    np.testing.assert_array_equal(covariate(trace, "cpu_usr"), [[1.5], [2.5]])
    assert {"disk_read", "io_read", "net_recv", "memory_free"} <= set(trace.covariate_names)
    assert "first row, the mean since" in trace.meta["dropped"]
    assert "1 row at the end, cut off by NUL bytes" in trace.meta["dropped"]


def test_sar_tells_cores_apart_and_counts_restarts(made):
    text = (
        "# hostname;interval;timestamp;CPU;%user;%idle\nh1;60;2020-01-01 00:01:00 UTC;-1;10.5;89.5\n"
        "h1;-1;2020-01-01 00:01:30 UTC;LINUX-RESTART (2 CPU)\nh1;60;2020-01-01 00:02:00 UTC;0;20;80\n"
    )
    trace = only(made("sar.csv", text))
    assert trace.workers == ("h1", "h1 cpu 0")
    np.testing.assert_array_equal(covariate(trace, "%user"), [[10.5, NAN], [NAN, 20]])
    assert "1 restarts" in trace.meta["dropped"]


def test_sar_parts_are_traces_of_their_own(made):
    path = made(
        "sar.csv",
        "# hostname;interval;timestamp;CPU;%user\nh1;60;2020-01-01 00:01:00 UTC;0;10\n"
        "# hostname;interval;timestamp;IFACE;rx\nh1;60;2020-01-01 00:01:00 UTC;eth0;7\n",
    )
    found = [(trace.workers, trace.covariates[:, :, 0].tolist()) for trace in read_traces(path)]
    assert found == [(("h1 cpu 0",), [[10]]), (("h1 iface eth0",), [[7]])]


def test_sar_bad_interval_names_row(made):
    header = "# hostname;interval;timestamp;CPU;%user\n"
    text = header + "h1;60;2020-01-01 00:01:00 UTC;0;10\nh1;{};2020-01-01 00:02:00 UTC;0;9\n"
    with pytest.raises(ValueError, match="column 'interval' must hold numbers, but row 3 holds 'often'"):
        read_traces(made("sar.csv", text.format("often")))
    for unknown in ("", "0"):  # as good as a second
        assert only(made("sar.csv", text.format(unknown))).meta["period_seconds"] == "30.5"


def test_sar_without_interval_counts_seconds(made):
    text = "# hostname;interval;timestamp;CPU;%user\nh1;0;2020-01-01 00:01:00 UTC;0;10\n"
    assert only(made("sar.csv", text)).meta["period_seconds"] == "1"
