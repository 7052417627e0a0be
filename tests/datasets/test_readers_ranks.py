"""Reports of other tools, with a time or a score for each rank: what is read, and what is refused with what to do."""

import json

import numpy as np
import pytest
from readings import only

from paceline.datasets import read_traces


def test_scores_in_json_lines_are_the_same(tmp_path):
    line = {
        "iteration": 3,
        "performance_data": {"relative_scores": {"0": 1.0, "1": 0.5}, "individual_scores": {"0": 1.0}},
    }
    (tmp_path / "job.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    np.testing.assert_allclose(only(tmp_path / "job.jsonl").speed, [[1, 0.5]] * 2)


def test_megatron_adds_own_parts_of_the_optimizer(tmp_path):
    step = "  optimizer-inner-step:\n     rank  0: 1.00\n     rank  1: 7.00\n  optimizer:\n     rank  0: 9.00\n"
    (tmp_path / "log.txt").write_text(timers([10, 20], [30, 50]).replace(" iteration", f"{step} iteration"))
    trace = only(tmp_path / "log.txt")
    np.testing.assert_allclose(trace.seconds, [[0.041, 0.077]])
    assert "optimizer-inner-step" in trace.meta["units"]


def timers(forward, backward, prefix=""):
    """A block in Megatron-LM's documented form."""
    lines = ["times across ranks (ms):", "  forward-backward:", "     rank  0: 900.00", "  forward-compute:"]
    lines += [f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(forward)]
    lines += ["  backward-compute:", *(f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(backward))]
    return "".join(
        f"{prefix}{line}\n" for line in [*lines, " iteration  100/ 500 | elapsed time per iteration (ms): 9 |"]
    )


@pytest.mark.parametrize("prefix", ["", "[default0]: "])
def test_megatron_timers_without_waiting(tmp_path, prefix):
    (tmp_path / "log.txt").write_text(
        "building\n" + timers([10, 20], [30, 50], prefix) + timers([11, 20], [30, 50], prefix)
    )
    trace = only(tmp_path / "log.txt")
    np.testing.assert_allclose(trace.seconds, [[0.040, 0.070], [0.041, 0.070]])
    assert trace.workers == ("0", "1")


def test_megatron_timers_missing_say_how_to_log(tmp_path):
    (tmp_path / "log.txt").write_text("times across ranks (ms):\n  forward-backward:\n     rank  0: 900.00\n")
    with pytest.raises(ValueError, match="log with --timing-log-level 2 --timing-log-option all"):
        read_traces(tmp_path / "log.txt")


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  "
            "memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%\n",
            "torchtitan, whose ranks all show the same tps",
        ),
        (
            "(min, max) time across ranks (ms):\n    forward-backward ....: (100.00, 101.00)\n",
            "without the times of single ranks",
        ),
        ("[INFO] epoch=0/micro_step=10, RunningAvgSamplesPerSec=173.4, CurrSamplesPerSec=171.9\n", "DeepSpeed"),
        ('{"current_steps": 1, "total_steps": 51, "loss": 0.6, "elapsed_time": "0:01:03"}\n', "one process"),
        ('{"epoch": 1.0, "global_step": 5, "log_history": [{"loss": 1, "step": 5}]}\n', "one process"),
        ("0: INFO: | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 |\n", "only the fastest and the slowest rank"),
    ],
)
def test_logs_without_ranks_say_what_to_log(tmp_path, log, sentence):
    (tmp_path / "run.log").write_text(log)
    with pytest.raises(ValueError, match=sentence):
        read_traces(tmp_path / "run.log")


def span(name, began, lasted, category="kernel"):
    return {"ph": "X", "cat": category, "name": name, "ts": began, "dur": lasted, "pid": 1, "tid": 1}


def export(rank, computing, **more):
    """Two steps of 100 ms of a rank that computes for so long, and then waits in a collective."""
    events = [{"ph": "M", "name": "process_name", "ts": 0}]
    for step, began in enumerate((0, 100_000)):
        events += [
            span(f"ProfilerStep#{step + 3}", began, 100_000, "user_annotation"),
            span(f"ProfilerStep#{step + 3}", began, 9e9, "gpu_user_annotation"),
            span("ampere_sgemm", began + 1000, computing * 1000),
            span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", began + 1000 + computing * 500, 98_000 - computing * 500),
        ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"rank": rank},
        "traceEvents": events,
        **more,
    }


def test_profiler_collectives_alone_are_no_work(tmp_path):
    for rank, computing in ((0, 40), (1, 80)):
        (tmp_path / f"w{rank}.json").write_text(json.dumps(export(rank, computing)))
    trace = only(tmp_path)
    # Alone from the end of computing, 1 + computing, to 99 ms.
    np.testing.assert_allclose(trace.seconds, [[0.042, 0.082]] * 2)
    assert trace.workers == ("0", "1")


def test_the_rank_may_stand_in_the_files_name(tmp_path):
    for rank in (0, 1):
        made = export(rank, 40)
        del made["distributedInfo"]
        (tmp_path / f"rank{rank}_trace.json").write_text(json.dumps(made))
    assert only(tmp_path).workers == ("0", "1")


def test_profiles_that_do_not_tell_are_refused(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(export(0, 40)))
    with pytest.raises(ValueError, match="is the profile of one rank: pass the folder"):
        read_traces(path)
    for kind, missing in (("ampere", "ProfilerStep"), ("Profiler", "kernel of NCCL or RCCL")):
        made = export(0, 40)
        made["traceEvents"] = [one for one in made["traceEvents"] if one["name"].startswith(kind)]
        path.write_text(json.dumps(made))
        with pytest.raises(ValueError, match=f"has no {missing}"):
            read_traces(path)


def test_megatrons_global_batch_is_read(tmp_path):
    (tmp_path / "log.txt").write_text(timers([10, 20], [30, 50]) + " iteration 100/ 500 | global batch size:   256 |\n")
    assert only(tmp_path / "log.txt").meta["global_batch"] == "256"
