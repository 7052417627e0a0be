"""Readers of resource usage, each on a small file made in the layout that the set documents."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from readings import BITBRAINS, DSTAT, DSTAT_ROW, MACHINES, NAN, covariate, only

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


def test_google_bigquery_dotted_names(made):
    text = "start_time,collection_id,instance_index,average_usage.cpus\n600000000,9007199254740993,3,0.5\n"
    trace = only(made("usage.csv", text))
    assert trace.workers == ("9007199254740993/3",)
    np.testing.assert_array_equal(covariate(trace, "average_usage.cpus"), [[0.5]])


def test_azure_readings_of_a_folder_are_one_set(made, tmp_path):
    made("vm_cpu_readings-file-1-of-2.csv", "0,vm1,1,9,5.5\n0,vm2,1,9,6\n")
    made("vm_cpu_readings-file-2-of-2.csv.gz", gzip.compress(b"300,vm1,1,9,7\n", mtime=0))
    trace = only(tmp_path)
    np.testing.assert_array_equal(covariate(trace, "avgcpu"), [[5.5, 6], [7, NAN]])


def test_bitbrains_timestamps_are_seconds(made, tmp_path):
    made("1.csv", BITBRAINS + "1372629804;\t4;\t11704;\t10912;\t93.2;\t67108864;\t6129274.4;\t0.1;\t20.4;\t1;\t2\n")
    made("2.csv", BITBRAINS + "1372630104;\t2;\t5852;\t58;\t1.0;\t67108864;\t6129274.4;\t0.1;\t20.4;\t1;\t2\n")
    trace = only(tmp_path)
    assert trace.workers == ("1", "2")
    np.testing.assert_array_equal(covariate(trace, "cpu_usage"), [[93.2, NAN], [NAN, 1.0]])
    assert 1372629804 - 300 < trace.start[0, 0] <= 1372629804


def test_times_in_the_wrong_unit_are_refused(made):
    text = BITBRAINS + "1372629804000;\t4;\t1;\t1;\t93.2;\t6;\t6;\t0;\t2;\t1;\t2\n"
    with pytest.raises(ValueError, match=r"1\.csv: times must be seconds between 1970 and 2100"):
        read_traces(made("1.csv", text))


@pytest.mark.parametrize("header", ["time,machine_id,cpu_util\n", ""])
def test_philly_cpu_reads_with_and_without_a_header(made, header):
    rows = "2017-10-03 00:08:00 PDT,m1,12.5\n2017-10-03 00:09:00 PDT,m1,NA\n2017-10-03 00:09:00 PDT,m2,50\n"
    trace = only(made("cluster_cpu_util", header + rows))
    np.testing.assert_array_equal(covariate(trace, "cpu_util"), [[12.5, NAN], [NAN, 50]])
    assert trace.start[0, 0] == pd.Timestamp("2017-10-03 07:08:00").timestamp()


def test_philly_gpu_rows_may_end_with_a_comma(made):
    header = "time,machineId," + ",".join(f"gpu{k}_util" for k in range(8)) + "\n"
    row = "2017-10-03 00:08:00 PDT,m1,1,2,NA,4,5,6,7,8,\n"
    trace = only(made("cluster_gpu_util", header + row))
    np.testing.assert_array_equal(trace.covariates, [[[1, 2, NAN, 4, 5, 6, 7, 8]]])


def test_philly_memory_has_two_covariates(made):
    trace = only(made("cluster_mem_util", "time,machine_id,mem_total,mem_free\n2017-10-03 00:08:00 PST,m1,528,400\n"))
    np.testing.assert_array_equal(trace.covariates, [[[528, 400]]])


def test_supercloud_cpu_skips_non_steps(made):
    header = (
        "Step,Node,Series,ElapsedTime,EpochTime,CPUFrequency,CPUTime,CPUUtilization,RSS,VMSize,Pages,ReadMB,WriteMB\n"
    )
    rows = "".join(
        f"{step},n1,0,0,{1.6e9 + t:.0f},2,1,380.5,9,9,0,1,1\n" for step, t in [(-1, 0), (-4, 0), (0, 0), (0, 10)]
    )
    trace = only(made("job-timeseries.csv", header + rows))
    np.testing.assert_array_equal(covariate(trace, "CPUUtilization"), [[380.5], [380.5]])
    assert trace.workers == ("n1/0/0",)
    assert "2 rows of steps -1 and -4" in trace.meta["dropped"]


def test_supercloud_gpu_keeps_a_tenth_of_a_second(made):
    names = "timestamp,gpu_index,utilization_gpu_pct,utilization_memory_pct,memory_free_MiB,memory_used_MiB,"
    header = names + "temperature_gpu,temperature_memory,power_draw_W,pcie_link_width_current\n"
    rows = "".join(f"{1.6e9 + k / 10:.1f},{k % 2},{k},1,1,1,40,40,70.5,16\n" for k in range(40))
    trace = only(made("job-gpu.csv", header + rows))
    assert trace.workers == ("gpu 0", "gpu 1")
    cpu = covariate(trace, "utilization_gpu_pct")
    np.testing.assert_array_equal(cpu[::2, 0], np.arange(0, 40, 2))
    np.testing.assert_array_equal(cpu[1::2, 1], np.arange(1, 40, 2))


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


def test_sar_workers_of_one_part(made):
    path = made(
        "sar.csv",
        "# hostname;interval;timestamp;CPU;%user\nh1;60;2020-01-01 00:01:00 UTC;0;10\n"
        "# hostname;interval;timestamp;IFACE;rx\nh1;60;2020-01-01 00:01:00 UTC;eth0;7\n",
    )
    for worker, rows in (("h1 cpu 0", [[10]]), ("h1 iface eth0", [[7]])):
        trace = only(path, workers=[worker])
        assert trace.covariates[:, :, 0].tolist() == rows
    assert "1 rows of workers that were not asked for" in trace.meta["dropped"]
    with pytest.raises(ValueError, match=r"has no row of the workers \['h2'\]"):
        read_traces(path, workers=["h2"])


def test_sar_bad_interval_names_row(made):
    header = "# hostname;interval;timestamp;CPU;%user\n"
    text = header + "h1;60;2020-01-01 00:01:00 UTC;0;10\nh1;{};2020-01-01 00:02:00 UTC;0;9\n"
    with pytest.raises(ValueError, match="row 3, column 'interval': must hold a number, got 'often'"):
        read_traces(made("sar.csv", text.format("often")))
    for unknown in ("", "0"):  # as good as a second
        assert only(made("sar.csv", text.format(unknown))).meta["period_seconds"] == "30.5"


def test_sar_without_interval_counts_seconds(made):
    text = "# hostname;interval;timestamp;CPU;%user\nh1;0;2020-01-01 00:01:00 UTC;0;10\n"
    assert only(made("sar.csv", text)).meta["period_seconds"] == "1"
