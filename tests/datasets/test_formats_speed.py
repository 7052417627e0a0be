"""Readers of measured speeds, each on a small file made in the layout that the set documents."""

import re
from pathlib import Path

import layouts
import numpy as np
import pytest
from readings import NAN, covariate, formats, only

from paceline.datasets import read_traces


def test_wandb_steps_take_earlier_covariates(made):
    text = (
        "_step,_runtime,_timestamp,system.cpu,time_s,note,loss\n0,0,100,10,,hello,\n1,1,101,,0.5,,1\n"
        "2,2,102,30,,,\n3,3,103,90,0.25,,2\n"
    )
    trace = only(made("run.csv", text), seconds="time_s", samples=32)
    np.testing.assert_array_equal(trace.speed, [[64], [128]])
    assert trace.covariate_names == ("system.cpu",)
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [10, 30])
    assert "note" in trace.meta["columns_dropped"]


def test_wandb_without_seconds_is_usage(made):
    text = "_step,_runtime,_timestamp,system.cpu,system.gpu.0.gpu\n0,0,100,10,\n1,1,101,20,5\n"
    with pytest.warns(UserWarning, match="every speed is NaN, because .*: pass seconds="):
        trace = only(made("run.csv", text))
    assert np.isnan(trace.speed).all()
    np.testing.assert_array_equal(trace.covariates[:, 0], [[10, NAN], [20, 5]])


def test_wandb_names_likely_time_columns(made):
    text = "_step,_runtime,_timestamp,loss,train/step_time_ms,steps\n0,0,100,1,5,7\n"
    with pytest.warns(UserWarning, match=r"likely ones are \['train/step_time_ms'\]"):
        only(made("run.csv", text))


def test_tensorboard_rates_from_steps_and_clock(made):
    text = "Wall time,Step,Value\n100,0,1\n100,5,1\n102,25,1\n104,65,1\n"
    trace = only(made("run.csv", text))
    np.testing.assert_array_equal(trace.speed, [[10], [20]])
    assert "1 rows of the same clock reading were put together" in trace.meta["changed"]


def test_tensorboard_values_as_rates(made):
    trace = only(made("run.csv", "Wall time,Step,Value\n100,0,12.5\n101,5,-1\n"), value_is_rate=True)
    np.testing.assert_array_equal(trace.speed, [[12.5], [NAN]])
    assert "1 rates that are not positive" in trace.meta["dropped"]


@pytest.mark.parametrize(
    ("line", "speed"),
    [
        ("Epoch: [0][10/5005]\tTime 0.500 (0.6)\tData 0.010 (0.2)\tLoss 6.9 (6.9)\n", 2.0),
        ("Epoch: [0][10/5005] Time 0.5 (0.6) Speed 512.0 (500.0)\n", 512.0),
        ("0: TRAIN [0][10/3880]\tTime 0.25 (0.3)\tData 1.2e-04 (1e-4)\tTok/s 40000 (39000)\n", 40000.0),
    ],
)
def test_pytorch_log_rates(made, line, speed):
    assert only(made("log.txt", line)).speed == pytest.approx(speed)


@pytest.mark.slow
def test_azure_single_measurements_left_out(made):
    """The set's short-lived machines were 11,816 traces of one iteration."""
    rows = "".join(f"{k + 1},1,2023-09-02 05:13:{k:02},{k}\n" for k in range(40))
    rows += "9,1,2023-09-03 05:00:00,7\n"
    path = made("db__Test__eastus__B8ms__TPS.csv", "value,runtime,starttime,VM_id\n" + rows)
    with pytest.warns(UserWarning, match=r"39 of 40 machines are left out"):
        trace = only(path)
    assert trace.workers == ("vm 7",)
    assert trace.meta["rows_dropped"] == "39"


@pytest.mark.parametrize(
    ("unit", "speed"),
    [("msec", 500), ("ms", 500), ("ns", 5e8), ("us Per Event", 5e5), ("Ns Per Event", 5e8), ("s", 0.5), ("MiB_s", 2)],
)
def test_azure_file_unit_decides_direction(tmp_path, unit, speed):
    """As in the public repository, where a benchmark's folders name it and the file names the unit."""
    folder = tmp_path / "OSBench" / "eastus" / "D8s_v5" / "vm_lifespan=long"
    folder.mkdir(parents=True)
    (folder / f"unit={unit}.csv").write_text(
        "value,runtime,starttime,VM_id\n2,1,2023-09-02 05:13:10,0\n2,1,2023-09-02 06:13:10,0\n"
    )
    (trace,) = read_traces(tmp_path)
    np.testing.assert_allclose(trace.speed, speed)
    assert trace.name == f"OSBench__eastus__D8s_v5__vm_lifespan=long__unit={unit}-vm0"


@pytest.mark.slow
def test_hivemind_worker_speeds(tmp_path):
    """Loading .25, moving .05, forward .4, loss .05 and backward .25 s are 1 s; the slower worker takes twice that."""
    layouts.hivemind(tmp_path)
    trace = only(tmp_path, "hivemind")
    assert trace.workers == ("gc-t4-1", "gc-t4-2")
    np.testing.assert_allclose(trace.speed, np.tile([32.0, 16.0], (4, 1)))
    np.testing.assert_array_equal(trace.wait_seconds, np.full((4, 2), 0.5))
    assert np.isfinite(trace.covariates).mean() > 0.8
    assert "restarts" not in trace.meta


def test_hivemind_monitor_peers_are_workers(tmp_path):
    layouts.hivemind(tmp_path)
    trace = only(tmp_path, "hivemind_monitor")
    assert trace.workers == ("peer 2", "peer 1")
    np.testing.assert_array_equal(trace.speed, [[NAN, 10], [NAN, 11], [20.5, 12], [21.5, 12.5]])


def test_pai_minibatches_are_thousandths(tmp_path):
    """250, 200 and 125 thousandths are 4, 5 and 8 mini-batches a second; 1000 is one."""
    layouts.pai_minibatch(tmp_path)
    trace = only(tmp_path, "pai_minibatch")
    np.testing.assert_array_equal(trace.speed, [[4, 5, 8], [4, 5, 1], [2, 5, NAN]])
    assert trace.meta["dropped"] == "1 repeated rows of a worker and time, of which the first counts"


def test_azure_folder_of_rates_and_times(tmp_path):
    """50 us an event are 20,000 events a second, 100 us are 10,000."""
    layouts.azure_vm_noise(tmp_path)
    traces = read_traces(tmp_path)
    assert len({trace.name.rpartition("-vm")[0] for trace in traces}) == 2
    assert all((np.diff(trace.start[:, 0]) > 0).all() for trace in traces)
    speeds = [trace.speed.ravel().tolist() for trace in traces]
    np.testing.assert_allclose(np.concatenate(speeds), [20000, 10000, 20000, 10000, 5, 10, 5, 10])
    assert all(trace.meta["rows_dropped"] == "0" for trace in traces)


@pytest.mark.slow
def test_bytedance_computing_of_ranks(tmp_path):
    """A rank's four operations of a step take .5 + r/4 s; all others are not its computing."""
    layouts.bytedance_llm(tmp_path)
    traces = read_traces(tmp_path)
    assert [trace.name.split("-", 2)[2] for trace in traces] == [
        *("stage0-window0", "stage0-window1", "stage1-window0", "stage1-window1")
    ]
    np.testing.assert_allclose(traces[0].speed, [[2, 4 / 3]] * 2)
    np.testing.assert_allclose(traces[2].speed, [[1, 0.8]] * 2)
    assert "restarts" not in traces[0].meta
    micro = read_traces(tmp_path, micro_batches=True)
    np.testing.assert_allclose(micro[0].speed, [[8, 16 / 3]] * 4)


def test_sync_switch_folder_is_one_training(tmp_path):
    """Each holds a loss, a norm and accuracies: read one by one they were three trainings."""
    for run in ("12_88_1", "12_88_2"):
        (tmp_path / run).mkdir()
        layouts.sync_switch(tmp_path / run)
    traces = read_traces(tmp_path)
    assert [trace.name for trace in traces] == ["12_88_1", "12_88_2"]
    for trace in traces:
        assert trace.meta["same_training"] == "weight_decay.csv, acc.csv"
        speeds = np.delete(trace.speed.ravel(), 10)  # over the restart
        np.testing.assert_allclose(speeds, [2.0] * 10 + [4.0] * 8)


@pytest.mark.slow
def test_scalars_of_two_trainings_stay_two(tmp_path):
    layouts.sync_switch(tmp_path)
    text = (tmp_path / "loss.csv").read_text("utf-8").splitlines()
    for later in (1000.0, 90000.0):  # the same steps and values, begun at another time
        rows = [f"{float(row.split(',')[0]) + later},{row.split(',', 1)[1]}" for row in text[1:]]
        (tmp_path / f"again{later:.0f}.csv").write_text("\n".join([text[0], *rows]) + "\n")
    assert len(read_traces(tmp_path)) == 3
    assert len(read_traces(tmp_path, value_is_rate=True)) == 5


def test_wandb_chart_has_a_run_per_third_column(made):
    text = (
        '"Step","calm-sea-3 - train/step_time","calm-sea-3 - train/step_time__MIN","calm-sea-3 - train/step_time__MAX",'
        '"old - owl-4 - train/step_time","old - owl-4 - train/step_time__MIN","old - owl-4 - train/step_time__MAX"\n'
        '"0","0.5","0.5","0.5","0.25","0.25","0.25"\n"50","0.25","0.2","0.3","","",""\n'
    )
    path = made("wandb_export_2026-01-01T00_00_00.000+00_00.csv", text)
    with pytest.raises(ValueError, match="pass values=seconds"):
        only(path)
    trace = only(path, values="seconds", samples=4)
    assert trace.meta["format"] == "wandb_chart"
    assert trace.workers == ("calm-sea-3", "old - owl-4")
    np.testing.assert_array_equal(trace.speed, [[8, 16], [16, NAN]])


def test_dstat_may_begin_with_the_time(made):
    text = (
        '"Dstat 0.7.2 CSV output"\n"Author:","x",,,,"URL:","y"\n"Host:","h",,,,"User:","u"\n'
        '"Cmdline:","dstat -Tcn",,,,"Date:","09 Jun 2021 18:59:00 UTC"\n\n'
        '"epoch","total cpu usage",,,,,,"net/total",\n"epoch","usr","sys","idl","wai","hiq","siq","recv","send"\n'
        "1623265140.5,9,9,9,9,0,0,9,9\n1623265141.5,0.5,0.25,99.25,0,0,0,64,128\n"
    )
    trace = only(made("out.csv", text))
    assert covariate(trace, "cpu_usr").tolist() == [[0.5]]
    assert covariate(trace, "net_send").tolist() == [[128]]


def test_sar_may_begin_with_a_restart(made):
    text = (
        "box;-1;2026-01-01 09:59:00 UTC;LINUX-RESTART\t(16 CPU)\n"
        "# hostname;interval;timestamp;runq-sz;plist-sz;ldavg-1;ldavg-5;ldavg-15;blocked\n"
        "box;600;2026-01-01 10:10:00 UTC;1;300;1.50;1;1;0\n"
    )
    trace = only(made("sar.csv", text))
    assert covariate(trace, "ldavg-1").tolist() == [[1.5]]
    assert trace.meta["restarts"] == "1"


def test_scores_of_a_straggler_report_are_speeds(made):
    """nvrx_scores: the line is one that a public repository quotes."""
    line = "Rank 0 GPUs relative perf: {0: 0.96, 1: 0.90, 2: 0.97, 3: 0.90}\n"
    trace = only(
        made("run.log", f"Epoch 0\n{line}Rank 0 GPUs individual perf: {{0: 1.0}}\n{line.replace('0.97', 'nan')}")
    )
    assert trace.workers == ("0", "1", "2", "3")
    np.testing.assert_allclose(trace.speed, [[0.96, 0.90, 0.97, 0.90], [0.96, 0.90, np.nan, 0.90]])
    assert trace.meta["rows_dropped"] == "2"


# -- what each format was tried on -------------------------------------------------------------------------------


@pytest.mark.checkout
def test_the_page_on_formats_says_the_same():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text("utf-8")
    section = page.split("## How each reader was tested")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    said = {name: seen.strip() for names, seen in rows for name in re.findall(r"`(\w+)`", names)}
    assert said == formats()
