"""Readers of resource usage, each on a small file made in the layout that the set documents."""

import gzip
import json

import numpy as np
import pytest
from readings import DSTAT, DSTAT_ROW, MACHINES, NAN, covariate, only

from paceline.datasets import read_traces


def test_alibaba_machines_on_ten_second_grid(made):
    trace = only(made("machine_usage.csv", MACHINES))
    assert trace.workers == ("m_1", "m_2")
    np.testing.assert_array_equal(covariate(trace, "cpu_util_percent"), [[50, NAN], [NAN, 70], [52, NAN]])
    assert np.isnan(trace.speed).all()
    assert trace.meta["dropped"] == "2 values of -1 or 101, which are invalid"
    assert trace.meta["rows_read"] == "4"
    assert "cpu_util_percent: percent" in trace.meta["units"]


def test_a_longer_period_averages_the_rows_within_it(made):
    trace = only(made("machine_usage.csv", MACHINES), period=30)
    np.testing.assert_array_equal(covariate(trace, "mem_util_percent"), [[61, 62]])
    np.testing.assert_array_equal(covariate(trace, "cpu_util_percent"), [[51, 70]])
    assert "2 rows were averaged" in trace.meta["changed"]


def test_unasked_workers_are_counted(made):
    trace = only(made("machine_usage.csv", MACHINES), workers=["m_2"])
    assert trace.workers == ("m_2",)
    assert "2 rows of workers that were not asked for" in trace.meta["dropped"]


def test_shuffled_repeated_rows_give_same_trace(made):
    rows = MACHINES.splitlines()
    shuffled = "\n".join([*rows[::-1], rows[0], rows[0]]) + "\n"
    trace, again = only(made("machine_usage.csv", MACHINES)), only(made("machine_usage2.csv", shuffled))
    np.testing.assert_array_equal(again.select(workers=trace.workers).covariates, trace.covariates)
    assert "2 repeated rows" in again.meta["dropped"]
    assert again.meta["rows_dropped"] == "2"
    assert "rows whose time went backwards" in again.meta["changed"]


def usage(start, cpus, **more):
    average = {"average_usage": {"cpus": cpus, "memory": 0.25}}
    times = {"start_time": str(start), "end_time": str(start + 300_000_000)}
    return json.dumps({**times, "collection_id": str(2**53 + 1), "instance_index": 3, **average, **more})


def test_google_lines_nested_with_long_integers(made):
    lines = [usage(600_000_000, 0.5), usage(1_200_000_000, 0.75, cycles_per_instruction=1.5), usage(2**63 - 1, 1)]
    path = made("instance_usage-000000000000.json.gz", gzip.compress("\n".join(lines).encode()))
    trace = only(path)
    assert trace.workers == (f"{2**53 + 1}/3",)
    np.testing.assert_array_equal(covariate(trace, "average_usage.cpus"), [[0.5], [NAN], [0.75]])
    np.testing.assert_array_equal(covariate(trace, "cycles_per_instruction"), [[NAN], [NAN], [1.5]])
    assert "1 rows before or after the trace's time" in trace.meta["dropped"]


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
