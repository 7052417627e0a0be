"""Logs of hivemind on rows made here and read by hand: what a step is put together of, and what is known before it."""

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import read_traces
from paceline.datasets.formats import training_logs
from paceline.datasets.readers import FORMATS

NAN = float("nan")

OWN = ["dataload", "move", "forward", "loss", "backward"]
NAMES = dict(zip(OWN, training_logs.HIVEMIND_OWN, strict=True)) | {
    "time": "_timestamp", "averaging": training_logs.AVERAGING, "whole": training_logs.WHOLE,
    "step": training_logs.STEP,
    "total": training_logs.SAMPLES, "cpu": "cpu/load/avg_sys_load_one_min_percent",
    "net": "bandwidth/net_sent_sys_bandwidth_Mbits",
}  # fmt: skip


def log(path, rows):
    """Write rows that each name the few columns that they fill."""
    lines = [",".join(str(row.get(name, "")) for name in NAMES) for row in rows]
    path.write_text("\n".join([",".join(NAMES.values()), *lines]) + "\n")
    return path


def step(time, number, total, own=0.2, **more):
    return {
        **dict.fromkeys(OWN, own),
        "time": time,
        "averaging": 0.25,
        "whole": 1,
        "step": number,
        "total": total,
    } | more


def test_a_step_of_hivemind_is_put_together_of_its_rows_and_begins_before_them(tmp_path):
    rows = [
        {"time": 10, "cpu": 1},
        {"time": 12, "dataload": 0.1, "move": 0.3},
        {**step(13, 0, 32), "dataload": "", "move": "", "whole": 2},
        {"time": 13, "cpu": 5, "net": 7},
        step(15, 1, 64),
        step(16, 1, 70, own=0.4, averaging=-1),
        {"time": "", "cpu": 99},
        step(18, 2, 60, loss=""),
        step(20, 3, 98, dataload=-3),
        step(30, 0, 38),
        step(31, 1, 76, whole=9),
        step(32, 2, 114),
        step(40, 0, 900),
    ]
    (trace,) = read_traces(log(tmp_path / "hivemind-7-gc-1.csv", rows), "hivemind")
    assert (trace.workers, trace.name, trace.covariate_names) == (("gc-1",), "hivemind-7", ("cpu_load", "net_sent"))
    np.testing.assert_allclose(trace.seconds[:, 0], [1.0, 2.0, NAN, NAN, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(trace.samples[:, 0], [32, 38, NAN, 38, 38, 38, 38, NAN])
    np.testing.assert_allclose(trace.wait_seconds[:, 0], [0.25, NAN, *[0.25] * 6])
    np.testing.assert_allclose(trace.start[:, 0], [11, 15, 17, 19, 29, 29, 31, 39])
    np.testing.assert_allclose(trace.covariates[:, 0], [[1, NAN], *[[5, 7]] * 7])
    assert (trace.meta["restarts"], trace.meta["rows_read"]) == ("2", str(len(rows)))
    said = {*trace.meta["dropped"].split(", ")}
    assert said == {
        "1 rows without a time", "1 repeated steps", "of which the last value counts", "1 negative seconds",
        "1 negative samples", "1 negative wait_seconds", "1 resumed totals of samples", "which are no increment",
    }  # fmt: skip


def test_a_worker_of_hivemind_is_named_by_its_host_and_a_file_without_steps_is_refused(tmp_path):
    for name, worker in (
        ("hivemind-7-a.csv", "a"),
        ("hivemind-7.csv", "hivemind-7"),
        ("x.y.csv", "x"),
        ("hivemind-7-.csv",) * 2,
    ):
        (trace,) = read_traces(log(tmp_path / name, [step(13, 0, 32), step(14, 1, 64)]), "hivemind")
        assert trace.workers == (worker,)
    path = log(tmp_path / "hivemind-8-a.csv", [{"time": 10, "cpu": 1}, {"time": 11, "dataload": 1}])
    with pytest.raises(ValueError, match=r"hivemind-8-a\.csv: column '01_general/step' counts no step$"):
        read_traces(path, "hivemind")


def test_system_columns_that_are_empty_are_covariates_of_which_nothing_is_known(tmp_path):
    (trace,) = read_traces(log(tmp_path / "hivemind-7-a.csv", [step(13, 0, 32), step(14, 1, 64)]), "hivemind")
    assert trace.covariate_names == ("cpu_load", "net_sent")
    np.testing.assert_array_equal(trace.covariates, np.full((2, 1, 2), NAN))


def test_a_hivemind_file_without_system_columns_has_no_covariates(tmp_path):
    path = log(tmp_path / "hivemind-7-a.csv", [step(13, 0, 32), step(14, 1, 64)])
    table = pd.read_csv(path).drop(columns=[NAMES["cpu"], NAMES["net"]])
    table.to_csv(path, index=False)
    (trace,) = read_traces(path, "hivemind")
    assert (trace.covariate_names, len(trace)) == ((), 2)


def test_system_rows_are_known_a_second_before_a_step_and_later_ones_of_a_second_count(tmp_path):
    rows = [
        {"time": 11, "cpu": 2},
        {"time": 11, "cpu": 3},
        {"time": 12, "cpu": 4},
        step(13, 0, 32),  # begins at 12: what is of 11 is known
        step(14, 1, 64, cpu=9),
        step(15, 2, 96),
    ]
    (trace,) = read_traces(log(tmp_path / "hivemind-7-a.csv", rows), "hivemind")
    np.testing.assert_allclose(trace.covariates[:, 0, 0], [3, 4, 4])
    rows[:3] = [{"time": 12, "cpu": 4}]
    (trace,) = read_traces(log(tmp_path / "hivemind-7-a.csv", rows), "hivemind")
    np.testing.assert_allclose(trace.covariates[:, 0, 0], [NAN, 4, 4], err_msg="nothing is known so early")


def test_a_monitor_of_hivemind_has_a_row_for_each_second(tmp_path):
    peers = [f"04_peers/peer_{k}_samples_per_second" for k in (2, 10)]
    rows = ["5,1,", "5,2,8", ",9,9", "7,,4", "6,3,"]
    path = tmp_path / "hivemind-7-vm-monitor.csv"
    path.write_text("\n".join([",".join(["_timestamp", *peers]), *rows]) + "\n")
    (trace,) = read_traces(path, "hivemind_monitor")
    assert (trace.workers, trace.name) == (("peer 2", "peer 10"), "hivemind-7-monitor")
    np.testing.assert_array_equal(trace.samples, [[2, 8], [3, NAN], [NAN, 4]])
    np.testing.assert_array_equal(trace.seconds, [[1, 1], [1, NAN], [NAN, 1]])
    np.testing.assert_array_equal(trace.start, [[5, 5], [6, 6], [7, 7]])
    assert (trace.meta["rows_read"], trace.meta["dropped"]) == ("5", "1 rows without a time")
    path.write_text("_timestamp,04_peers/peer_x_samples_per_second\n1,2\n")
    with pytest.raises(ValueError, match=r"monitor\.csv: has no column 04_peers/peer_<k>_samples_per_second$"):
        read_traces(path, "hivemind_monitor")
    says = FORMATS["hivemind_monitor"].recognises
    assert says(path, ",".join(["x", peers[1]]))
    assert not says(path, "x,04_peers/peer__samples_per_second")
