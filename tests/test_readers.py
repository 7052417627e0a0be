"""Readers of public traces, each on a small file made in the layout that the set documents."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace, iter_traces, read_traces
from paceline.datasets.readers import FORMATS, TABLES, panel, read_table, recognise

NAN = float("nan")


@pytest.fixture
def made(tmp_path):
    """Write a file of this name and content into the test's folder, and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def only(path, *arguments, **options):
    (trace,) = read_traces(path, *arguments, **options)
    return trace


def driver(trace, name):
    return trace.drivers_named([name])[:, :, 0]


# -- Alibaba 2018 ------------------------------------------------------------------------------------------------

MACHINES = "m_1,0,50,60,,,1.5,2.5,3\nm_2,0,-1,61,1,2,1.5,2.5,101\nm_1,20,52,62,,,1.5,2.5,3\nm_2,10,70,63,1,2,3,4,5\n"


def test_alibaba_machines_are_workers_on_a_grid_of_ten_seconds(made):
    trace = only(made("machine_usage.csv", MACHINES))
    assert trace.workers == ("m_1", "m_2")
    np.testing.assert_array_equal(driver(trace, "cpu_util_percent"), [[50, NAN], [NAN, 70], [52, NAN]])
    assert np.isnan(trace.speed).all()
    assert trace.meta["dropped"] == "2 values of -1 or 101, which are invalid"
    assert trace.meta["rows_read"] == "4"
    assert "cpu_util_percent: percent" in trace.meta["units"]


def test_a_longer_period_averages_the_rows_within_it(made):
    trace = only(made("machine_usage.csv", MACHINES), period=30)
    np.testing.assert_array_equal(driver(trace, "mem_util_percent"), [[61, 62]])
    np.testing.assert_array_equal(driver(trace, "cpu_util_percent"), [[51, 70]])
    assert "2 rows were averaged" in trace.meta["changed"]


def test_only_the_workers_that_are_asked_for_are_kept_and_the_others_counted(made):
    trace = only(made("machine_usage.csv", MACHINES), workers=["m_2"])
    assert trace.workers == ("m_2",)
    assert "2 rows of workers that were not asked for" in trace.meta["dropped"]


def test_rows_in_any_order_with_repeats_give_the_same_trace_and_are_counted(made):
    rows = MACHINES.splitlines()
    shuffled = "\n".join([*rows[::-1], rows[0], rows[0]]) + "\n"
    trace, again = only(made("machine_usage.csv", MACHINES)), only(made("machine_usage2.csv", shuffled))
    np.testing.assert_array_equal(again.select(workers=trace.workers).drivers, trace.drivers)
    assert "2 repeated rows" in again.meta["dropped"]
    assert again.meta["rows_dropped"] == "2"
    assert "rows whose time went backwards" in again.meta["changed"]


def test_containers_are_workers_too(made):
    text = "c_1,m_1,0,50,60,1.2,,,1.5,2.5,3\nc_2,m_1,10,40,61,1.3,,,1.5,2.5,3\n"
    trace = only(made("container_usage.csv", text))
    assert trace.workers == ("c_1", "c_2")
    np.testing.assert_array_equal(driver(trace, "cpi"), [[1.2, NAN], [NAN, 1.3]])


def test_a_file_dealt_into_buckets_on_disk_gives_the_same_series_as_one_in_memory(made, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [f"m_{rng.integers(9)},{10 * rng.integers(200)},{rng.integers(100)},1,,,1,1,1" for _ in range(3000)]
    path = made("machine_usage.csv", "\n".join(rows) + "\n")
    whole = only(path)
    monkeypatch.setattr(panel, "BUCKET_BYTES", 20_000)
    monkeypatch.setattr(panel, "PANEL_VALUES", 4000)
    parts = read_traces(path)
    assert len(parts) >= 4
    assert sorted(name for part in parts for name in part.workers) == sorted(whole.workers)
    for part in parts:
        expected = whole.select(workers=part.workers)
        first = round((float(part.meta["first_time"].split()[0]) - float(whole.meta["first_time"].split()[0])) / 10)
        np.testing.assert_array_equal(part.drivers, expected.drivers[first : first + len(part)])


def test_temporary_buckets_are_gone_when_reading_stops_early(made, monkeypatch, tmp_path):
    monkeypatch.setattr(panel, "BUCKET_BYTES", 50)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    traces = iter_traces(made("machine_usage.csv", MACHINES))
    next(traces)
    assert list(tmp_path.glob("paceline-rows-*"))
    traces.close()
    assert not list(tmp_path.glob("paceline-rows-*"))


# -- Alibaba GPU 2020 --------------------------------------------------------------------------------------------


def test_alibaba_gpu_sensors_are_one_iteration_of_averages(made):
    text = "j,t,w1,i1,m1,V100,120,80,1,2,3,4,5,6,7,8\nj,t,w2,i2,m1,V100,,90,1,2,3,4,5,6,7,8\n"
    trace = only(made("pai_sensor_table.csv", text))
    np.testing.assert_array_equal(driver(trace, "cpu_usage"), [[120, NAN]])
    assert "not a series" in trace.meta["averages"]


def test_alibaba_gpu_machine_metrics_are_one_iteration_of_averages(made):
    trace = only(made("pai_machine_metric.csv", "w1,m1,0,9,1,2,3,4,5,6,7,8\n"))
    np.testing.assert_array_equal(driver(trace, "machine_load_1"), [[5]])


# -- Google 2019 -------------------------------------------------------------------------------------------------


def usage(start, cpus, **more):
    average = {"average_usage": {"cpus": cpus, "memory": 0.25}}
    times = {"start_time": str(start), "end_time": str(start + 300_000_000)}
    return json.dumps({**times, "collection_id": str(2**53 + 1), "instance_index": 3, **average, **more})


def test_google_lines_nest_and_their_long_integers_are_strings(made):
    lines = [usage(600_000_000, 0.5), usage(1_200_000_000, 0.75, cycles_per_instruction=1.5), usage(2**63 - 1, 1)]
    path = made("instance_usage-000000000000.json.gz", gzip.compress("\n".join(lines).encode()))
    trace = only(path)
    assert trace.workers == (f"{2**53 + 1}/3",)
    np.testing.assert_array_equal(driver(trace, "average_usage.cpus"), [[0.5], [NAN], [0.75]])
    np.testing.assert_array_equal(driver(trace, "cycles_per_instruction"), [[NAN], [NAN], [1.5]])
    assert "1 rows before or after the trace's time" in trace.meta["dropped"]


def test_google_tables_from_bigquery_have_dotted_names(made):
    text = "start_time,collection_id,instance_index,average_usage.cpus\n600000000,9007199254740993,3,0.5\n"
    trace = only(made("usage.csv", text))
    assert trace.workers == ("9007199254740993/3",)
    np.testing.assert_array_equal(driver(trace, "average_usage.cpus"), [[0.5]])


# -- Azure, Bitbrains, Philly, MIT -------------------------------------------------------------------------------


def test_azure_readings_of_a_folder_are_one_set(made, tmp_path):
    made("vm_cpu_readings-file-1-of-2.csv", "0,vm1,1,9,5.5\n0,vm2,1,9,6\n")
    made("vm_cpu_readings-file-2-of-2.csv.gz", gzip.compress(b"300,vm1,1,9,7\n", mtime=0))
    trace = only(tmp_path)
    np.testing.assert_array_equal(driver(trace, "avgcpu"), [[5.5, 6], [7, NAN]])


BITBRAINS = (
    "Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\t"
    "Memory capacity provisioned [KB];\tMemory usage [KB];\tDisk read throughput [KB/s];\t"
    "Disk write throughput [KB/s];\tNetwork received throughput [KB/s];\tNetwork transmitted throughput [KB/s]\n"
)


def test_bitbrains_time_stamps_are_seconds_despite_their_name(made, tmp_path):
    made("1.csv", BITBRAINS + "1372629804;\t4;\t11704;\t10912;\t93.2;\t67108864;\t6129274.4;\t0.1;\t20.4;\t1;\t2\n")
    made("2.csv", BITBRAINS + "1372630104;\t2;\t5852;\t58;\t1.0;\t67108864;\t6129274.4;\t0.1;\t20.4;\t1;\t2\n")
    trace = only(tmp_path)
    assert trace.workers == ("1", "2")
    np.testing.assert_array_equal(driver(trace, "cpu_usage"), [[93.2, NAN], [NAN, 1.0]])
    assert 1372629804 - 300 < trace.start[0, 0] <= 1372629804


def test_times_in_the_wrong_unit_are_refused(made):
    text = BITBRAINS + "1372629804000;\t4;\t1;\t1;\t93.2;\t6;\t6;\t0;\t2;\t1;\t2\n"
    with pytest.raises(ValueError, match=r"1\.csv: times must be seconds between 1970 and 2100"):
        read_traces(made("1.csv", text))


@pytest.mark.parametrize("header", ["time,machine_id,cpu_util\n", ""])
def test_philly_cpu_reads_with_and_without_a_header(made, header):
    rows = "2017-10-03 00:08:00 PDT,m1,12.5\n2017-10-03 00:09:00 PDT,m1,NA\n2017-10-03 00:09:00 PDT,m2,50\n"
    trace = only(made("cluster_cpu_util", header + rows))
    np.testing.assert_array_equal(driver(trace, "cpu_util"), [[12.5, NAN], [NAN, 50]])
    assert trace.start[0, 0] == pd.Timestamp("2017-10-03 07:08:00").timestamp()


def test_philly_gpu_rows_may_end_with_a_comma(made):
    header = "time,machineId," + ",".join(f"gpu{k}_util" for k in range(8)) + "\n"
    row = "2017-10-03 00:08:00 PDT,m1,1,2,NA,4,5,6,7,8,\n"
    trace = only(made("cluster_gpu_util", header + row))
    np.testing.assert_array_equal(trace.drivers, [[[1, 2, NAN, 4, 5, 6, 7, 8]]])


def test_philly_memory_has_two_drivers(made):
    trace = only(made("cluster_mem_util", "time,machine_id,mem_total,mem_free\n2017-10-03 00:08:00 PST,m1,528,400\n"))
    np.testing.assert_array_equal(trace.drivers, [[[528, 400]]])


def test_supercloud_cpu_leaves_out_the_steps_that_are_none(made):
    header = (
        "Step,Node,Series,ElapsedTime,EpochTime,CPUFrequency,CPUTime,CPUUtilization,RSS,VMSize,Pages,ReadMB,WriteMB\n"
    )
    rows = "".join(
        f"{step},n1,0,0,{1.6e9 + t:.0f},2,1,380.5,9,9,0,1,1\n" for step, t in [(-1, 0), (-4, 0), (0, 0), (0, 10)]
    )
    trace = only(made("job-timeseries.csv", header + rows))
    np.testing.assert_array_equal(driver(trace, "CPUUtilization"), [[380.5], [380.5]])
    assert trace.workers == ("n1/0/0",)
    assert "2 rows of steps -1 and -4" in trace.meta["dropped"]


def test_supercloud_gpu_keeps_a_tenth_of_a_second(made):
    names = "timestamp,gpu_index,utilization_gpu_pct,utilization_memory_pct,memory_free_MiB,memory_used_MiB,"
    header = names + "temperature_gpu,temperature_memory,power_draw_W,pcie_link_width_current\n"
    rows = "".join(f"{1.6e9 + k / 10:.1f},{k % 2},{k},1,1,1,40,40,70.5,16\n" for k in range(40))
    trace = only(made("job-gpu.csv", header + rows))
    assert trace.workers == ("gpu 0", "gpu 1")
    cpu = driver(trace, "utilization_gpu_pct")
    np.testing.assert_array_equal(cpu[::2, 0], np.arange(0, 40, 2))
    np.testing.assert_array_equal(cpu[1::2, 1], np.arange(1, 40, 2))


# -- single series, monitors, logs, clients ----------------------------------------------------------------------


def test_wandb_steps_take_the_drivers_known_before_them(made):
    text = (
        "_step,_runtime,_timestamp,system.cpu,time_s,note,loss\n0,0,100,10,,hello,\n1,1,101,,0.5,,1\n"
        "2,2,102,30,,,\n3,3,103,90,0.25,,2\n"
    )
    trace = only(made("run.csv", text), seconds="time_s", samples=32)
    np.testing.assert_array_equal(trace.speed, [[64], [128]])
    assert trace.driver_names == ("system.cpu",)
    np.testing.assert_array_equal(trace.drivers[:, 0, 0], [10, 30])
    assert "note" in trace.meta["columns_dropped"]


def test_wandb_without_a_column_of_seconds_is_usage(made):
    text = "_step,_runtime,_timestamp,system.cpu,system.gpu.0.gpu\n0,0,100,10,\n1,1,101,20,5\n"
    trace = only(made("run.csv", text))
    assert np.isnan(trace.speed).all()
    np.testing.assert_array_equal(trace.drivers[:, 0], [[10, NAN], [20, 5]])


def test_nab_is_one_driver(made):
    trace = only(made("ec2.csv", "timestamp,value\n2014-02-14 14:30:00,0.132\n2014-02-14 14:35:00,0.134\n"))
    np.testing.assert_array_equal(trace.drivers[:, 0, 0], [0.132, 0.134])
    assert np.diff(trace.start[:, 0]) == [300]


def test_tensorboard_rates_come_from_steps_and_clock(made):
    text = "Wall time,Step,Value\n100,0,1\n100,5,1\n102,25,1\n104,65,1\n"
    trace = only(made("run.csv", text))
    np.testing.assert_array_equal(trace.speed, [[10], [20]])
    assert "1 rows of the same clock reading were put together" in trace.meta["changed"]


def test_tensorboard_values_may_be_rates_themselves(made):
    trace = only(made("run.csv", "Wall time,Step,Value\n100,0,12.5\n101,5,-1\n"), value_is_rate=True)
    np.testing.assert_array_equal(trace.speed, [[12.5], [NAN]])
    assert "1 rates that are not positive" in trace.meta["dropped"]


def test_mxnet_speeds_are_told_apart_by_node(made):
    text = (
        "2019-03-01 10:00:00,123 Node[0] Epoch[0] Batch [0-20]\tSpeed: 100.5 samples/sec\taccuracy=0.5\n"
        "something else\n[1,0]<stderr>:INFO Node[1] Epoch[0] Batch [0-20]\tSpeed: 50 samples/sec\r"
        "INFO Node[0] Epoch[0] Batch [20-40]\tSpeed: 101 samples/sec\n"
    )
    trace = only(made("train.log", text))
    assert trace.workers == ("0", "1")
    np.testing.assert_array_equal(trace.speed, [[100.5, 50], [101, NAN]])
    assert trace.meta["dropped"] == "1 lines of other kinds"


def test_maskrcnn_data_time_and_memory_are_known_one_line_later(made):
    line = "2019 trainer INFO: eta: 1:00 iter: {} loss: 1 time: {} (0.6) data: {} (0.02) max mem: 4000\n"
    trace = only(made("log.txt", line.format(20, "0.5000", "0.0100") + line.format(40, "0.2500", "0.0200")))
    np.testing.assert_array_equal(trace.speed, [[2], [4]])
    np.testing.assert_array_equal(driver(trace, "data_seconds"), [[NAN], [0.01]])


@pytest.mark.parametrize(
    ("line", "speed"),
    [
        ("Epoch: [0][10/5005]\tTime 0.500 (0.6)\tData 0.010 (0.2)\tLoss 6.9 (6.9)\n", 2.0),
        ("Epoch: [0][10/5005] Time 0.5 (0.6) Speed 512.0 (500.0)\n", 512.0),
        ("0: TRAIN [0][10/3880]\tTime 0.25 (0.3)\tData 1.2e-04 (1e-4)\tTok/s 40000 (39000)\n", 40000.0),
    ],
)
def test_pytorch_lines_give_batches_samples_or_tokens_a_second(made, line, speed):
    assert only(made("log.txt", line)).speed == pytest.approx(speed)


DSTAT = (
    '"Dstat 0.7.2 CSV output"\n"Author:","x",,,,"URL:","y"\n"Host:","h",,,,"User:","u"\n'
    '"Cmdline:","dstat -cdnmgyr",,,,"Date:","01 Jan"\n\n'
    '"total cpu usage",,,,,,"dsk/total",,"net/total",,"memory usage",,,,"paging",,"system",,"io/total",\n'
    '"usr","sys","idl","wai","hiq","siq","read","writ","recv","send","used","buff","cach","free","in","out","int","csw",'
    '"read","writ"\n'
)
DSTAT_ROW = "{},1,98,0,0,0,10,20,0,0,1e9,1,1,1,0,0,100,200,1,2\n"


def test_dstat_leaves_out_the_mean_since_boot_and_stops_at_nul_bytes(made):
    rows = DSTAT_ROW.format(50) + DSTAT_ROW.format(1.5) + DSTAT_ROW.format(2.5)
    trace = only(made("dstat.csv", (DSTAT + rows + "3.5,1,9").encode() + b"\0" * 50))
    np.testing.assert_array_equal(driver(trace, "cpu_usr"), [[1.5], [2.5]])
    assert {"disk_read", "io_read", "net_recv", "memory_free"} <= set(trace.driver_names)
    assert "first row, the mean since" in trace.meta["dropped"]
    assert "1 row at the end, cut off by NUL bytes" in trace.meta["dropped"]


def test_sar_tells_cores_apart_and_counts_restarts(made):
    text = (
        "# hostname;interval;timestamp;CPU;%user;%idle\nh1;60;2020-01-01 00:01:00 UTC;-1;10.5;89.5\n"
        "h1;-1;2020-01-01 00:01:30 UTC;LINUX-RESTART (2 CPU)\nh1;60;2020-01-01 00:02:00 UTC;0;20;80\n"
    )
    trace = only(made("sar.csv", text))
    assert trace.workers == ("h1", "h1 cpu 0")
    np.testing.assert_array_equal(driver(trace, "%user"), [[10.5, NAN], [NAN, 20]])
    assert "1 restarts" in trace.meta["dropped"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "clients.json",
            '{"a": {"computation": 20, "communication": 500}, "b": {"computation": 50, "communication": 9}}',
        ),
        ("clients.csv", "client,computation,communication\na,20,500\nb,50,9\n"),
    ],
)
def test_fedscale_clients_are_one_iteration(made, name, text):
    trace = only(made(name, text))
    np.testing.assert_allclose(trace.speed, [[50, 20]])
    np.testing.assert_array_equal(driver(trace, "bandwidth"), [[500, 9]])


# -- speed measured ----------------------------------------------------------------------------------------------


def test_azure_noise_rates_and_durations_both_become_speed(made, tmp_path):
    header = "value,runtime,starttime,VM_id\n"
    rows = "10,1,2023-09-02 05:13:10.610,0\n20,1,2023-09-01 05:13:10,0\n"
    rows += "5,1,2023-09-01 05:13:10,1\n0,1,2023-09-03 00:00:00,1\n"
    rates = read_traces(made("db__Test__eastus__B8ms__TPS.csv", header + rows))
    times = read_traces(made("launch__eastus__B8ms__us_Per_Event.csv", header + rows))
    assert [trace.workers for trace in rates] == [("vm 0",), ("vm 1",)]
    np.testing.assert_array_equal(rates[0].speed, [[20], [10]])  # by time, not by row
    np.testing.assert_allclose(times[0].speed, [[5e4], [1e5]])
    assert rates[1].meta["dropped"] == "1 values that are not positive"


def test_pai_mini_batches_are_a_panel_of_workers(made):
    text = ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,25,1,250\n2,0,25,11,1000\n3,0,25,11,7\n"
    trace = only(made("job_9_norm.csv", text))
    np.testing.assert_array_equal(trace.speed, [[2, 4], [1, NAN]])
    assert trace.meta["dropped"].startswith("1 repeated rows")
    assert trace.name == "pai-job_9"


def test_pai_variation_has_a_job_a_column(made):
    trace = only(made("coefficient_variation.csv", ",0,1,2\njob_00,0.1,0.2,0.3\njob_01,0.4,0.5,\n"))
    np.testing.assert_array_equal(driver(trace, "variation"), [[0.1, 0.4], [0.2, 0.5], [0.3, NAN]])


def test_hivemind_steps_are_put_together_from_two_rows(made):
    parts = ["dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step", "step"]
    names = ["_step", "_runtime", "_timestamp", *(f"02_timing/{part}_time_s" for part in parts)]
    names += ["01_general/step", "01_general/locally_processed_samples", "cpu/load/avg_sys_load_one_min_percent"]
    rows = [
        "0,0,100,,,,,,,,,,12.5",
        "1,1,101,0.1,,0.1,,,,,,,14",  # the first half of step 0
        "2,2,103,,0.1,,0.1,0.1,0.5,1,0,32,99",  # the second; it began at 102
        "3,3,105,0.1,0.1,0.1,0.1,0.6,0.5,1,1,64,",
    ]
    trace = only(made("hivemind-7-gc-t4-1.csv", "\n".join([",".join(names), *rows]) + "\n"))
    np.testing.assert_allclose(trace.speed, [[64], [32]])
    np.testing.assert_array_equal(trace.wait_seconds, [[0.5], [0.5]])
    np.testing.assert_array_equal(driver(trace, "cpu_load"), [[14], [99]])
    assert trace.workers == ("gc-t4-1",)


@pytest.mark.parametrize(
    ("unit", "speed"),
    [("msec", 500), ("ms", 500), ("ns", 5e8), ("us Per Event", 5e5), ("Ns Per Event", 5e8), ("s", 0.5), ("MiB_s", 2)],
)
def test_the_unit_of_an_azure_file_says_whether_more_is_faster(tmp_path, unit, speed):
    """As in the public repository, where a benchmark's folders name it and the file names the unit."""
    folder = tmp_path / "OSBench" / "eastus" / "D8s_v5" / "vm_lifespan=long"
    folder.mkdir(parents=True)
    (folder / f"unit={unit}.csv").write_text(
        "value,runtime,starttime,VM_id\n2,1,2023-09-02 05:13:10,0\n2,1,2023-09-02 06:13:10,0\n"
    )
    (trace,) = read_traces(tmp_path)
    np.testing.assert_allclose(trace.speed, speed)
    assert trace.name == f"OSBench__eastus__D8s_v5__vm_lifespan=long__unit={unit}-vm0"


def hivemind_log(runs, resumed=False):
    """Rows of steps of one second each; every run counts its steps and samples from nothing, or goes on counting."""
    parts = ["dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step", "step"]
    names = ["_step", "_runtime", "_timestamp", *(f"02_timing/{part}_time_s" for part in parts)]
    names += ["01_general/step", "01_general/locally_processed_samples", "cpu/load/avg_sys_load_one_min_percent"]
    rows, time, total = [], 100, 0
    for count in runs:
        time += 50  # until it is started again
        total = total if resumed else 0
        for step in range(count):
            time, total = time + 1, total + 32
            rows.append(f"{len(rows)},{time},{time},0.1,0.1,0.1,0.1,0.1,0,1,{step},{total},{time}")
    return "\n".join([",".join(names), *rows]) + "\n"


def test_hidden_folders_hold_no_data(tmp_path):
    """A clone's history lies beside its data; a subfolder of the data is read."""
    for folder in (".git", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.csv").write_text("worker,iteration,samples,seconds\na,0,1,1\n")
    (trace,) = read_traces(tmp_path)
    assert trace.name == "job"


@pytest.mark.parametrize("resumed", [False, True], ids=["totals begin anew", "totals go on"])
def test_a_restarted_run_goes_on_after_the_one_before(made, resumed):
    trace = only(made("hivemind-7-gc-t4-1.csv", hivemind_log([5, 3, 4], resumed=resumed)))
    np.testing.assert_allclose(trace.speed, np.full((12, 1), 64.0))
    assert (np.diff(trace.start[:, 0]) > 0).all()
    known = driver(trace, "cpu_load")[2:, 0]
    assert len(set(known)) >= 8, "drivers follow every step and do not freeze at a restart"
    assert trace.meta["restarts"] == "2"


def test_bytedance_steps_are_cut_at_gaps_and_stages_kept_apart(tmp_path):
    rows = [
        {"rank": rank, "stage": rank // 2, "step": step, "optype": kind, "duration": 0.25 + rank, "seq_id": 0}
        for rank in range(4)
        for step in (5, 7, 400)
        for kind in ("forward-compute", "backward-compute", "optimizer")
    ]
    path = tmp_path / "trace-XX.parquet"
    pd.DataFrame(rows).astype({"optype": "category"}).to_parquet(path)
    traces = read_traces(path)
    assert [trace.seconds.shape for trace in traces] == [(2, 2), (1, 2), (2, 2), (1, 2)]
    np.testing.assert_allclose(traces[2].seconds, [[4.5, 6.5]] * 2)
    assert traces[0].meta["dropped"].startswith("12 operations other than")
    np.testing.assert_allclose(read_traces(path, micro_batches=True)[2].seconds, [[2.25, 3.25]] * 2)


# -- tables that hold no series ----------------------------------------------------------------------------------

TABLE_ROWS = {
    "machine_meta.csv": "m_1,0,1,2,96,100,USING\n",
    "container_meta.csv": "c_1,m_1,0,app_1,started,400,800,1.5\n",
    "pai_job_table.csv": "j,i,u,Terminated,1,2\n",
    "pai_task_table.csv": "j,worker,2,Running,1,,600,29,100,V100\n",
    "pai_instance_table.csv": "j,t,n,w,i,Failed,1,2,m\n",
    "pai_group_tag_table.csv": "i,u,V100,g,bert\n",
    "pai_machine_spec.csv": "m,V100,96,512,8\n",
    "vmtable.csv": "v,s,d,0,300,99.5,10,50,Delay-insensitive,>24,>64\n",
    "deployments.csv": "d,12\n",
    "cluster_machine_list": "machineId, number of GPUs, single GPU mem\nm1,8,24GB\n",
    "cluster_job_log": '[{"jobid": "a", "attempts": [{"detail": [{"ip": "x", "gpus": ["g0", "g1"]}]}]}]',
    "machine_events-0.json": '{"time": "5", "machine_id": "7", "type": 1, "capacity": {"cpus": 0.5}}\n',
}


@pytest.mark.parametrize("name", TABLE_ROWS)
def test_every_table_is_recognised_by_its_name_and_read(made, name):
    path = made(name, TABLE_ROWS[name])
    assert len(read_table(path)) == 1
    with pytest.raises(ValueError, match="holds no series; read it with read_table"):
        recognise(path)


def test_every_table_that_is_listed_is_tested():
    assert len(TABLES) == len(TABLE_ROWS)


def test_philly_attempts_count_their_gpus(made):
    table = read_table(made("cluster_job_log", TABLE_ROWS["cluster_job_log"]))
    assert table.loc[0, ["hosts", "gpus"]].tolist() == [1, 2]


# -- recognising, options, errors --------------------------------------------------------------------------------


def test_own_files_are_read_like_any_other(made, tmp_path):
    trace = Trace([[8, 8]], [[1, 2]], workers=["a", "b"], meta={"job": "tiny"})
    parquet = trace.save(tmp_path / "tiny.parquet")
    csv = tmp_path / "tiny.csv"
    trace.to_frame().to_csv(csv, index=False)
    assert [recognise(path).name for path in (parquet, csv)] == ["parquet", "csv"]
    for path in (parquet, csv):
        np.testing.assert_array_equal(only(path).speed, trace.speed)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("machine_usage.csv", "m,0,1,1,,,1,1,1\nm,10,x,1,,,1,1,1\n", "row 2, column 'cpu_util_percent'.*'x'"),
        ("machine_usage.csv", "m,0,1,1,,,1,1,1\nm,10,1,1,,\n", "row 2: must have 9 cells, got 6"),
        ("machine_usage.csv", "m,0,1,1,,,1,1,1\nm,9e15,1,1,,,1,1,1\n", "a time or its unit is wrong"),
        ("machine_usage.csv", ",0,1,1,,,1,1,1\n", "no row with a worker and a time is left"),
        ("machine_usage.csv", "", "the file is empty"),
        ("job.csv", "worker,gpu,time,batch_time_norm\n", "has no rows"),
        ("ec2.csv", "timestamp,value\n2014-02-14 14:30:00,1\nyesterday,2\n", "row 3, column 'timestamp'.*'yesterday'"),
        ("ec2.csv", "timestamp,value\n2014-02-14 14:30:00 CEST,2\n", "row 2, column 'timestamp'"),
        ("usage.json", '{"collection_id": "1", "average_usage": {}}\n{"a": \n', "line 2: must be one JSON object"),
        (
            "usage.json",
            '{"collection_id": 1, "average_usage": {"cpus": "much"}}\n',
            "line 1, field 'average_usage.cpus'",
        ),
        ("sar.csv", "# hostname;interval;timestamp;%user\nh;60;2020-01-01 00:00:00 UTC\n", "row 2: must have 4 cells"),
        ("dstat.csv", DSTAT + DSTAT_ROW.format("a"), "row 8, column 'cpu_usr'"),
        ("c.json", '{"a": {"computation": "x", "communication": 1}}', "client 'a': 'computation' must be a number"),
        ("model.pkl", b"\x80\x04\x95\x00", "is a pickle, .* it was not"),
        ("usage.csv", b"\x80\x03}q\x00", "is a pickle"),
        ("x.csv", b"PK\x03\x04abc", "is a zip archive"),
        ("x.gz", gzip.compress(b"m,0,1\n" * 1000, mtime=0)[:-20], "truncated or damaged"),
        ("job.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "is a Git LFS pointer"),
        ("notes.txt", "nothing known\n", "no format that is recognised; name the format"),
    ],
)
def test_errors_say_what_where_and_what_to_do(made, name, content, sentence):
    path = made(name, content)
    with pytest.raises(ValueError, match=sentence) as error:
        read_traces(path)
    assert str(path) in str(error.value)


def test_a_pickle_is_refused_unopened_even_when_its_format_is_named(made):
    path = made("client_device_capacity", b"\x80\x04\x95\x10")
    with pytest.raises(ValueError, match="Export it as JSON or CSV"):
        read_traces(path, "fedscale")


def test_a_compressed_bomb_is_refused(made, monkeypatch):
    monkeypatch.setattr("paceline.datasets.readers.files.FREE_BYTES", 1 << 16)
    path = made("machine_usage.csv", gzip.compress(b"m,0,1,1,,,1,1,1\n" * 200_000, mtime=0))
    with pytest.raises(ValueError, match="times its size"):
        read_traces(path)


def test_unknown_formats_options_and_files_are_named(made, tmp_path):
    path = made("machine_usage.csv", MACHINES)
    with pytest.raises(ValueError, match="there is no format 'alibaba'"):
        read_traces(path, "alibaba")
    with pytest.raises(ValueError, match=r"has no option \['speed'\]; it has \['period', 'workers'\]"):
        read_traces(path, speed=1)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        read_traces(tmp_path / "nothing")


def test_a_folder_gives_the_traces_of_one_format_when_it_is_named(made, tmp_path):
    made("machine_usage.csv", MACHINES)
    made("ec2.csv", "timestamp,value\n2014-02-14 14:30:00,0.132\n")
    made("README.md", "text")
    assert len(read_traces(tmp_path)) == 2
    assert [trace.meta["format"] for trace in read_traces(tmp_path, "nab")] == ["nab"]
    with pytest.raises(ValueError, match="holds no file of sar"):
        read_traces(tmp_path, "sar")


def test_every_format_says_what_it_is():
    for name, one in FORMATS.items():
        assert one.name == name
        assert one.about
        assert one.files
        assert one.gives


def test_a_million_clients_are_one_trace(made):
    rows = "".join(f"c{k},{1 + k % 7},5\n" for k in range(1_000_000))
    trace = only(made("clients.csv", "client,computation,communication\n" + rows))
    assert len(trace.workers) == 1_000_000
    assert trace.speed[0, 6] == pytest.approx(1000 / 7)


def test_a_panel_that_would_only_fill_memory_is_refused(made):
    rows = "".join(f"{k},{k},25,{k},500\n" for k in range(40_000))
    path = made("job_1_norm.csv", ",worker,gpu,time,batch_time_norm\n" + rows)
    with pytest.raises(ValueError, match=r"40000 workers and 40000 iterations, a panel that would be nearly empty"):
        read_traces(path)


def test_a_single_wrong_time_does_not_fill_memory(made):
    rows = "".join(f"m,{10 * k},1,1,,,1,1,1\n" for k in range(2000)) + "m,20000000000,1,1,,,1,1,1\n"
    with pytest.raises(ValueError, match="a time or its unit is wrong"):
        read_traces(made("machine_usage.csv", rows))
