"""Tables are recognised by columns that stand for one format: exactly these are enough, and one less is not."""

import pytest

from paceline.datasets.readers import FORMATS

ENOUGH = {
    "supercloud_cpu": ("Step", "Node", "EpochTime", "CPUUtilization"),
    "supercloud_gpu": ("timestamp", "gpu_index", "utilization_gpu_pct"),
    "tensorboard": ("Wall time", "Step", "Value"),
    "alibaba_genai": ("timestamp_anon", "value", "container_ip"),
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
