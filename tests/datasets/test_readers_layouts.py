"""Speeds worked out by hand on excerpts in the layouts of the real files that each format was tried on.

What the real samples themselves hold is in test_readers_real.py, where they are at hand.
"""

import json
import re
from pathlib import Path

import layouts
import numpy as np
import pandas as pd
import pytest
from readings import NAN, covariate, only

from paceline.datasets import read_traces
from paceline.datasets.profiles import CURVE, read_profiles
from paceline.datasets.readers import FORMATS
from paceline.datasets.readers.format import MADE, OWN, QUOTED
from paceline.eval.replay.federated import phones


@pytest.mark.slow
def test_hivemind_workers_compute_32_samples_in_one_and_two_seconds(tmp_path):
    """Loading .25, moving .05, forward .4, loss .05 and backward .25 s are 1 s; the slower worker takes twice that."""
    layouts.hivemind(tmp_path)
    trace = only(tmp_path, "hivemind")
    assert trace.workers == ("gc-t4-1", "gc-t4-2")
    np.testing.assert_allclose(trace.speed, np.tile([32.0, 16.0], (4, 1)))
    np.testing.assert_array_equal(trace.wait_seconds, np.full((4, 2), 0.5))
    assert np.isfinite(trace.covariates).mean() > 0.8
    assert "restarts" not in trace.meta


def test_hivemind_monitor_sees_the_same_peers_as_there_are_workers(tmp_path):
    layouts.hivemind(tmp_path)
    trace = only(tmp_path, "hivemind_monitor")
    assert trace.workers == ("peer 2", "peer 1")
    np.testing.assert_array_equal(trace.speed, [[NAN, 10], [NAN, 11], [20.5, 12], [21.5, 12.5]])


def test_a_hivemind_file_is_a_wandb_export_too(tmp_path):
    """A step of 1 s and .5 s of averaging: 32 / 1.5."""
    layouts.hivemind(tmp_path)
    path = tmp_path / "hivemind-7-gc-t4-1.csv"
    trace = only(path, "wandb", seconds="02_timing/step_time_s", samples=32)
    np.testing.assert_allclose(trace.speed, np.full((4, 1), 32 / 1.5))
    assert covariate(trace, "cpu/load/avg_sys_load_one_min_percent").ravel().tolist() == [4, 5, 6, 7]


def test_pai_mini_batches_are_thousandths_of_the_longest(tmp_path):
    """250, 200 and 125 thousandths are 4, 5 and 8 mini-batches a second; 1000 is one."""
    layouts.pai_minibatch(tmp_path)
    trace = only(tmp_path, "pai_minibatch")
    np.testing.assert_array_equal(trace.speed, [[4, 5, 8], [4, 5, 1], [2, 5, NAN]])
    assert trace.meta["dropped"] == "1 repeated rows of a worker and time, of which the first counts"


def test_pai_variation_has_a_job_in_each_row(tmp_path):
    layouts.pai_minibatch(tmp_path)
    trace = only(tmp_path, "pai_variation")
    np.testing.assert_array_equal(covariate(trace, "variation"), [[0.25, 0.75], [0.5, NAN], [0.125, NAN]])


def test_azure_events_are_rates_and_microseconds_are_times(tmp_path):
    """50 us an event are 20,000 events a second, 100 us are 10,000."""
    layouts.azure_vm_noise(tmp_path)
    traces = read_traces(tmp_path)
    assert len({trace.name.rpartition("-vm")[0] for trace in traces}) == 2
    assert all((np.diff(trace.start[:, 0]) > 0).all() for trace in traces)
    speeds = [trace.speed.ravel().tolist() for trace in traces]
    np.testing.assert_allclose(np.concatenate(speeds), [20000, 10000, 20000, 10000, 5, 10, 5, 10])
    assert all(trace.meta["rows_dropped"] == "0" for trace in traces)


@pytest.mark.slow
def test_bytedance_ranks_compute_twice_forward_and_twice_backward(tmp_path):
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


@pytest.mark.slow
def test_of_micro_batches_the_forward_ones_are_read(tmp_path):
    """Backward computing takes as long again and half as much; a step holds both."""
    layouts.bytedance_llm(tmp_path)
    path = tmp_path / "trace-XX.parquet"
    table = pd.read_parquet(path)
    backward = table["optype"] == "backward-compute"
    table.loc[backward, "duration"] = table.loc[backward, "duration"] * 2.5
    table.to_parquet(path)
    np.testing.assert_allclose(read_traces(path, micro_batches=True)[0].speed, [[8, 16 / 3]] * 4)
    np.testing.assert_allclose(read_traces(path)[0].seconds, np.array([[0.5, 0.75]] * 2) * 3.5 / 2)


def test_the_cpu_of_chosen_machines_is_read_alone(tmp_path):
    path = tmp_path / "vm_cpu_readings-file-1-of-195.csv"
    path.write_text("0,vm1,1,9,5.5\n0,vm2,2,8,6\n300,vm1,1,9,6\n300,vm2,2,8,6.5\n")
    assert read_traces(path, "azure_vm_cpu")[0].workers == ("vm1", "vm2")
    (chosen,) = read_traces(path, "azure_vm_cpu", workers=["vm2"])
    assert chosen.workers == ("vm2",)
    np.testing.assert_array_equal(chosen.covariates[:, 0], [[2, 8, 6], [2, 8, 6.5]])


def test_cm_dares_steps_follow_each_other_by_the_clock(tmp_path):
    """A hundred steps in 10 s, then in 25 s."""
    layouts.tensorboard(tmp_path)
    path = tmp_path / "res15k80worker1.csv"
    np.testing.assert_array_equal(only(path).speed, [[10], [4]])
    np.testing.assert_array_equal(only(path, value_is_rate=True).speed, [[8.5], [9.5], [4.5]])


def test_a_sync_switch_run_that_steps_back_is_restarted(tmp_path):
    """A hundred steps in 50 s; then a restart, which has no speed; then a hundred in 25 s."""
    layouts.tensorboard(tmp_path)
    trace = only(tmp_path / "cifar100_res50__12_88_1.csv")
    np.testing.assert_array_equal(trace.speed, [[2], [NAN], [4]])
    assert trace.meta["restarts"] == "1"


def test_a_sync_switch_folder_is_one_training_and_another_folder_another(tmp_path):
    """Each holds a loss, a norm, accuracies and processed copies: read one by one they were four trainings."""
    for run in ("12_88_1", "12_88_2"):
        (tmp_path / run).mkdir()
        layouts.sync_switch(tmp_path / run)
    traces = read_traces(tmp_path)
    assert [trace.name for trace in traces] == ["12_88_1", "12_88_2"]
    for trace in traces:
        assert trace.meta["same_training"] == "loss_proc.csv, weight_decay.csv, acc.csv"
        speeds = np.delete(trace.speed.ravel(), 10)  # over the restart
        np.testing.assert_allclose(speeds, [2.0] * 10 + [4.0] * 8)


@pytest.mark.slow
def test_scalars_of_two_trainings_in_one_folder_stay_two(tmp_path):
    layouts.sync_switch(tmp_path)
    text = (tmp_path / "loss.csv").read_text().splitlines()
    for later in (1000.0, 90000.0):  # the same steps and values, begun at another time
        rows = [f"{float(row.split(',')[0]) + later},{row.split(',', 1)[1]}" for row in text[1:]]
        (tmp_path / f"again{later:.0f}.csv").write_text("\n".join([text[0], *rows]) + "\n")
    assert len(read_traces(tmp_path)) == 3
    assert len(read_traces(tmp_path, value_is_rate=True)) == 6


def test_a_chart_as_wandb_exports_it_has_a_run_in_each_third_column(made):
    text = (
        '"Step","calm-sea-3 - train/step_time","calm-sea-3 - train/step_time__MIN","calm-sea-3 - train/step_time__MAX",'
        '"old - owl-4 - train/step_time","old - owl-4 - train/step_time__MIN","old - owl-4 - train/step_time__MAX"\n'
        '"0","0.5","0.5","0.5","0.25","0.25","0.25"\n"50","0.25","0.2","0.3","","",""\n'
    )
    path = made("wandb_export_2026-01-01T00_00_00.000+00_00.csv", text)
    with pytest.raises(ValueError, match=r"does not say what its values are: give values=seconds"):
        only(path)
    trace = only(path, values="seconds", samples=4)
    assert trace.meta["format"] == "wandb_chart"
    assert trace.workers == ("calm-sea-3", "old - owl-4")
    np.testing.assert_array_equal(trace.speed, [[8, 16], [16, NAN]])


QUOTED_LINES = {
    "pytorch_log": (
        "Epoch: [0][0/18]\tTime 4.000 (4.000)\tData 3.500 (3.500)\tLoss 3.5 (3.5)\n"
        "Lr: 4.2e-06 | Update: 2.2e-01 mean | Epoch: [0][10/2391] | Time 0.500 (1.5) | Data 0.25 (0.1) | Loss 4.0\n"
        "Epoch: [0][20/915]\t lr:0.01000 Time 0.250 (14.5)\tLoss 8.5 (8.5)\nTest: [0/6]\tTime 4.5 (4.5)\n",
        [0.25, 2, 4],
    ),
}


@pytest.mark.parametrize("name", QUOTED_LINES)
def test_lines_as_programs_print_them_have_their_speeds(made, name):
    text, speeds = QUOTED_LINES[name]
    trace = only(made("train.log", text))
    assert trace.meta["format"] == name
    assert trace.speed.ravel().tolist() == speeds


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


# -- profiles ----------------------------------------------------------------------------------------------------

CURVES = {"gavel": 2, "zeus": 2, "pollux": 4, "flash": 12}


@pytest.mark.parametrize("kind", CURVES)
def test_profiles_in_the_published_layouts_are_read_whole(tmp_path, kind):
    getattr(layouts, kind)(tmp_path)
    frame = pd.concat([read_profiles(path, kind) for path in sorted(tmp_path.iterdir())])
    assert (frame["batch"] > 0).all()
    assert (frame["seconds"].dropna() > 0).all()
    assert frame.groupby(CURVE).ngroups == CURVES[kind]
    assert not frame.duplicated([*CURVE, "batch"]).any(), "every curve holds each batch once"


def test_phones_are_those_of_the_profiles_and_differ_as_these_do(tmp_path):
    """One phone is three times as slow as the other."""
    layouts.flash(tmp_path)
    population = phones(40, tmp_path, seed=0)
    assert set(population.devices) == {"nexus6", "redmi_note8"}
    slopes = pd.Series(population.slope).groupby(list(population.devices)).median()
    assert slopes["nexus6"] / slopes["redmi_note8"] == pytest.approx(3.0, rel=0.5)


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


def test_every_format_says_what_it_was_tried_on():
    assert all(one.seen in (OWN, MADE, QUOTED) or one.seen.startswith("real files of ") for one in FORMATS.values())


def test_every_format_with_real_files_or_lines_has_its_speeds_checked_here():
    source = Path(__file__).read_text() + Path(layouts.__file__).read_text()
    source += Path(__file__).with_name("test_foreign_tables.py").read_text()
    without = [name for name, one in FORMATS.items() if one.seen not in (OWN, MADE) and name not in source]
    assert without == []


@pytest.mark.checkout
def test_the_page_on_formats_says_the_same():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    section = page.split("## Seen on real files")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    said = {name: seen.strip() for names, seen in rows for name in re.findall(r"`(\w+)`", names)}
    assert said == {name: one.seen for name, one in FORMATS.items()}


def test_a_trace_says_what_its_reader_was_tried_on(made, tmp_path):
    trace = only(made("machine_usage.csv", "m_1,0,50,60,,,1,1,3\n"))
    assert trace.meta["reader_seen"] == MADE
    assert only(trace.save(tmp_path / "t.parquet")).meta["reader_seen"] == MADE, "kept when it is converted"


def test_a_client_of_any_positive_time_counts_and_others_are_told(tmp_path):
    path = tmp_path / "capacity.json"
    path.write_text(
        json.dumps({f"{k}": {"computation": one, "communication": 8.0} for k, one in enumerate([0.5, 1.0, 0.0, -2.0])})
    )
    (trace,) = read_traces(path, "fedscale")
    np.testing.assert_array_equal(trace.seconds, [[0.0005, 0.001, np.nan, np.nan]])
    assert "2 clients whose computation is not positive" in trace.meta["dropped"]
