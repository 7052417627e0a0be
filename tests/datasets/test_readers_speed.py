"""Readers of measured speeds, each on a small file made in the layout that the set documents."""

import numpy as np
import pandas as pd
import pytest
from readings import NAN, covariate, only

from paceline.datasets import read_traces


def test_wandb_steps_take_the_covariates_known_before_them(made):
    text = (
        "_step,_runtime,_timestamp,system.cpu,time_s,note,loss\n0,0,100,10,,hello,\n1,1,101,,0.5,,1\n"
        "2,2,102,30,,,\n3,3,103,90,0.25,,2\n"
    )
    trace = only(made("run.csv", text), seconds="time_s", samples=32)
    np.testing.assert_array_equal(trace.speed, [[64], [128]])
    assert trace.covariate_names == ("system.cpu",)
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [10, 30])
    assert "note" in trace.meta["columns_dropped"]


def test_wandb_without_a_column_of_seconds_is_usage(made):
    text = "_step,_runtime,_timestamp,system.cpu,system.gpu.0.gpu\n0,0,100,10,\n1,1,101,20,5\n"
    with pytest.warns(UserWarning, match="every speed is NaN, as no column of step times is named: give seconds="):
        trace = only(made("run.csv", text))
    assert np.isnan(trace.speed).all()
    np.testing.assert_array_equal(trace.covariates[:, 0], [[10, NAN], [20, 5]])


def test_wandb_names_the_columns_that_may_hold_a_steps_time(made):
    text = "_step,_runtime,_timestamp,loss,train/step_time_ms,steps\n0,0,100,1,5,7\n"
    with pytest.warns(UserWarning, match=r"likely ones are \['train/step_time_ms'\]"):
        only(made("run.csv", text))


def test_tensorboard_rates_come_from_steps_and_clock(made):
    text = "Wall time,Step,Value\n100,0,1\n100,5,1\n102,25,1\n104,65,1\n"
    trace = only(made("run.csv", text))
    np.testing.assert_array_equal(trace.speed, [[10], [20]])
    assert "1 rows of the same clock reading were put together" in trace.meta["changed"]


def test_tensorboard_values_may_be_rates_themselves(made):
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
def test_pytorch_lines_give_batches_samples_or_tokens_a_second(made, line, speed):
    assert only(made("log.txt", line)).speed == pytest.approx(speed)


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
    np.testing.assert_array_equal(covariate(trace, "bandwidth"), [[500, 9]])


def test_azure_noise_rates_and_durations_both_become_speed(made, tmp_path):
    header = "value,runtime,starttime,VM_id\n"
    rows = "10,1,2023-09-02 05:13:10.610,0\n20,1,2023-09-01 05:13:10,0\n"
    rows += "5,1,2023-09-01 05:13:10,1\n0,1,2023-09-03 00:00:00,1\n"
    rates = read_traces(made("db__Test__eastus__B8ms__TPS.csv", header + rows), least=1)
    times = read_traces(made("launch__eastus__B8ms__us_Per_Event.csv", header + rows), least=1)
    assert [trace.workers for trace in rates] == [("vm 0",), ("vm 1",)]
    np.testing.assert_array_equal(rates[0].speed, [[20], [10]])  # by time, not by row
    np.testing.assert_allclose(times[0].speed, [[5e4], [1e5]])
    assert rates[1].meta["dropped"] == "1 values that are not positive"


@pytest.mark.slow
def test_azure_machines_with_one_measurement_are_left_out_in_a_sentence(made):
    """The set's short-lived machines were 11,816 traces of one iteration."""
    rows = "".join(f"{k + 1},1,2023-09-02 05:13:{k:02},{k}\n" for k in range(40))
    rows += "9,1,2023-09-03 05:00:00,7\n"
    path = made("db__Test__eastus__B8ms__TPS.csv", "value,runtime,starttime,VM_id\n" + rows)
    with pytest.warns(UserWarning, match=r"39 of 40 machines are left out.*fewer than 2 measurements; least=1 reads"):
        trace = only(path)
    assert trace.workers == ("vm 7",)
    assert trace.meta["rows_dropped"] == "39"
    assert len(read_traces(path, least=1)) == 40


def test_pai_mini_batches_are_a_panel_of_workers(made):
    text = ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,25,1,250\n2,0,25,11,1000\n3,0,25,11,7\n"
    trace = only(made("job_9_norm.csv", text))
    np.testing.assert_array_equal(trace.speed, [[2, 4], [1, NAN]])
    assert trace.meta["dropped"].startswith("1 repeated rows")
    assert trace.name == "pai-job_9"


def test_pai_variation_has_a_job_a_column(made):
    trace = only(made("coefficient_variation.csv", ",0,1,2\njob_00,0.1,0.2,0.3\njob_01,0.4,0.5,\n"))
    np.testing.assert_array_equal(covariate(trace, "variation"), [[0.1, 0.4], [0.2, 0.5], [0.3, NAN]])


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
    np.testing.assert_array_equal(covariate(trace, "cpu_load"), [[14], [99]])
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


@pytest.mark.parametrize("resumed", [False, True], ids=["totals begin anew", "totals go on"])
def test_a_restarted_run_goes_on_after_the_one_before(made, resumed):
    trace = only(made("hivemind-7-gc-t4-1.csv", hivemind_log([5, 3, 4], resumed=resumed)))
    np.testing.assert_allclose(trace.speed, np.full((12, 1), 64.0))
    assert (np.diff(trace.start[:, 0]) > 0).all()
    known = covariate(trace, "cpu_load")[2:, 0]
    assert len(set(known)) >= 8, "covariates follow every step and do not freeze at a restart"
    assert trace.meta["restarts"] == "2"


@pytest.mark.slow
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


def test_a_new_epoch_is_no_restart_and_an_earlier_one_is(made):
    line = "Epoch: [{}][{}/18]\tTime 0.500 (0.5)\n"
    places = [(0, 0), (0, 10), (1, 0), (1, 10), (0, 0)]
    assert "restarts" not in only(made("log.txt", "".join(line.format(*one) for one in places[:4]))).meta
    assert only(made("log.txt", "".join(line.format(*one) for one in places))).meta["restarts"] == "1"
