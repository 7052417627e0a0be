"""Tables are recognised by columns that stand for one format: exactly these are enough, and one less is not."""

import json
from pathlib import Path

import pytest

from paceline.datasets.formats.profilers import _rows
from paceline.datasets.formats.tables import _is_chart
from paceline.datasets.readers import FORMATS, iter_traces

ENOUGH = {
    "supercloud_cpu": ("Step", "Node", "EpochTime", "CPUUtilization"),
    "supercloud_gpu": ("timestamp", "gpu_index", "utilization_gpu_pct"),
    "tensorboard": ("Wall time", "Step", "Value"),
    "fedscale": ("client", "computation", "communication"),
    "pai_minibatch": ("worker", "gpu", "time", "batch_time_norm"),
    "azure_vm_noise": ("value", "runtime", "starttime", "VM_id"),
    "google_2019": ("start_time", "collection_id", "instance_index", "average_usage.cpus"),
    "hivemind": (
        *("01_general/step", "01_general/locally_processed_samples", "02_timing/dataload_time_s"),
        *("02_timing/dataload_cuda_move_time_s", "02_timing/forward_time_s", "02_timing/loss_calc_time_s"),
        "02_timing/backward_time_s",
    ),
    "bitbrains": ("Timestamp [ms]", "CPU usage [%]"),
    "wandb": ("_step", "_runtime", "_timestamp"),
}


@pytest.mark.parametrize("name", ENOUGH)
def test_a_header_of_exactly_the_columns_that_tell_is_recognised_and_none_is_one_too_many(name, tmp_path):
    columns, between = ENOUGH[name], ";" if name == "bitbrains" else ","
    recognises = FORMATS[name].recognises

    def says(names):
        return recognises(tmp_path / "some.csv", between.join(names) + "\n" + between.join("1" * len(names)) + "\n")

    assert says(columns)
    assert says([*columns, "another"])
    for left_out in columns:
        assert not says([one for one in columns if one != left_out]), left_out


def test_a_column_of_dstat_that_comes_twice_is_named(tmp_path):
    path = tmp_path / "dstat.csv"
    path.write_text('"Dstat 0.7.2 CSV output"\n"total cpu usage",,\n"usr","sys","usr"\n1,1,98\n2,1,97\n')
    with pytest.raises(ValueError, match=r"the header repeats the columns \['cpu_usr'\]"):
        list(iter_traces(path, "dstat"))


def test_a_chart_has_both_bounds_of_a_line():
    assert _is_chart(Path("chart.csv"), "Step,a,a__MIN,a__MAX\n")
    assert not _is_chart(Path("chart.csv"), "Step,a,a__MIN\n")


def test_the_first_five_ranks_without_metrics_are_named(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"step_time": {"groups": {"rows": {str(rank): {} for rank in range(7)}}}}))
    with pytest.raises(ValueError, match=r"ranks \['0', '1', '2', '3', '4'\] have no metrics"):
        _rows(path)
