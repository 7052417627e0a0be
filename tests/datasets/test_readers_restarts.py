"""Readers are fed logs whose job was started again: each run counts from nothing, or from a checkpoint."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.datasets import read_traces

PARTS = ["dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step", "step"]
PAUSE = 50
"""Seconds until a job is started again."""


@st.composite
def restarted(draw):
    """The steps of each run: a later one begins before the step at which the one before ended."""
    runs = [list(range(draw(st.integers(3, 9))))]
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, runs[-1][-1] - 1))
        runs.append(list(range(first, first + draw(st.integers(3, 9)))))
    return runs


def timed(runs):
    """Yield run, step and time: a step takes half a second."""
    time = 1_600_000_000.0
    for run, steps in enumerate(runs):
        for step in steps:
            time += 0.5
            yield run, step, time
        time += PAUSE


def hivemind(runs):
    names = ["_step", "_runtime", "_timestamp", *(f"02_timing/{part}_time_s" for part in PARTS)]
    rows, total, before = [",".join([*names, "01_general/step", "01_general/locally_processed_samples"])], 0, 0
    for n, (run, step, time) in enumerate(timed(runs)):
        total, before = (32 if run > before else total + 32), run
        rows.append(f"{n},{n},{time},.1,.1,.1,.1,.1,0,1,{step},{total}")
    return "\n".join(rows)


def csv(runs):
    return "worker,iteration,samples,seconds\n" + "\n".join(
        f"{worker},{step},{32 + run},{0.5 + run / 64}" for run, step, _ in timed(runs) for worker in "ab"
    )


def pai(runs):
    rows = [f",{worker},25,{10 * step + 1},500" for _, step, _ in timed(runs) for worker in (0, 1)]
    return ",worker,gpu,time,batch_time_norm\n" + "\n".join(rows)


def wandb(runs):
    return "_step,_runtime,_timestamp,system.cpu,time_s\n" + "\n".join(
        f"{step},{step},{time},{run},0.5" for run, step, time in timed(runs)
    )


def tensorboard(runs):
    return "Wall time,Step,Value\n" + "\n".join(f"{time},{step},1" for _, step, time in timed(runs))


def lines(pattern):
    return lambda runs: "\n".join(pattern.format(step=step, run=run) for run, step, _ in timed(runs))


def dstat(runs):
    header = '"Dstat 0.7.2 CSV output"\n"total cpu usage",,\n"usr","sys","idl"\n'
    return "\n".join(header + "\n".join(f"{step},1,9" for step in [99, *steps]) for steps in runs)


def sar(runs):
    text, before = ["# hostname;interval;timestamp;%user;%idle"], 0
    for run, step, time in timed(runs):
        if run > before:
            text.append(f"h;-1;{time - 1:.0f};LINUX-RESTART (2 CPU)")
        text.append(f"h;1;{2 * time:.0f};{step};1")
        before = run
    return "\n".join(text)


LOGS = {
    "hivemind": (hivemind, 64.0, {}),
    "csv": (csv, 64.0, {}),
    "pai_minibatch": (pai, 2.0, {}),
    "bytedance_llm": (None, 2.0, {}),
    "wandb": (wandb, 64.0, {"seconds": "time_s", "samples": 32}),
    "tensorboard": (tensorboard, 2.0, {}),
    "pytorch_log": (lines("Epoch: [0][{step}/99]\tTime 0.5 (0.6)\tData {run} (0.2)"), 2.0, {}),
    "dstat": (dstat, None, {}),
    "sar": (sar, None, {}),
}
"""The log, the speed in it (None: usage only), and the options to read it with."""


def written(name, runs, folder):
    path = folder / {"hivemind": "hivemind-7-a.csv", "bytedance_llm": "trace-X.parquet"}.get(name, "log.csv")
    if name == "bytedance_llm":
        columns = {"rank": 0, "stage": 0, "step": [step for _, step, _ in timed(runs)], "seq_id": 0, "duration": 0.5}
        pd.DataFrame({**columns, "optype": "forward-compute"}).to_parquet(path)
    else:
        path.write_text(LOGS[name][0](runs) + "\n")
    return path


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.slow
def test_restarted_log_is_one_trace(name, tmp_path):
    _, speed, options = LOGS[name]

    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(restarted())
    def check(runs):
        (trace,) = read_traces(written(name, runs, tmp_path), name, **options)
        assert trace.meta["restarts"] == str(len(runs) - 1)
        steps = sum(map(len, runs))
        if speed is None:
            steps_T = trace.covariates[:, 0, 0]
            assert steps_T[np.isfinite(steps_T)].tolist() == [step for run in runs for step in run]
            return
        # A difference needs two rows of one run; every other reader has a speed for each row.
        least = steps - len(runs) if name == "tensorboard" else steps
        measured = trace.speed[np.isfinite(trace.speed)]
        np.testing.assert_allclose(measured, speed)
        assert len(measured) == least * len(trace.workers)

    check()


@pytest.mark.parametrize("name", ["wandb", "pytorch_log"])
def test_covariates_forgotten_at_restart(name, tmp_path):
    """The covariate of these logs is the number of their run."""
    (trace,) = read_traces(written(name, [[0, 1, 2], [0, 1], [0, 1]], tmp_path), name, **LOGS[name][2])
    known = trace.covariates[:, 0, 0].tolist()
    np.testing.assert_array_equal(known, [np.nan, 0, 0, np.nan, 1, np.nan, 2])


def test_resumed_total_is_counted(tmp_path):
    rows = hivemind([list(range(6)), list(range(6))]).splitlines()
    resumed = [",".join([*row.split(",")[:-1], str(int(row.split(",")[-1]) + 43_900)]) for row in rows[1:7]]
    path = tmp_path / "hivemind-7-a.csv"
    path.write_text("\n".join([rows[0], *resumed, *rows[7:]]) + "\n")
    (trace,) = read_traces(path)
    assert np.nanmax(trace.speed) == pytest.approx(64.0)
    assert trace.meta["dropped"] == "1 resumed totals of samples, which are no increment"


def test_ranks_of_log_are_no_restarts(tmp_path):
    line = "{rank}: TRAIN [0][{step}/3880]\tTime 0.5 (0.3)\tData 0.1 (0.1)\tTok/s 100 (90)"
    order = [(0, 10), (1, 10), (0, 20), (0, 30), (1, 20), (1, 30)]
    (tmp_path / "log.txt").write_text("\n".join(line.format(rank=rank, step=step) for rank, step in order) + "\n")
    (trace,) = read_traces(tmp_path / "log.txt")
    assert trace.workers == ("0", "1")
    assert "restarts" not in trace.meta


def test_frozen_covariates_are_counted_for_any_format(tmp_path):
    """CPU and memory of machine ``m`` stop moving; the memory of ``n`` rests while its CPU moves."""
    rows = [f"m,{10 * k},{min(k, 50) % 7},{min(k, 50) % 5},,,,,\n" for k in range(120)]
    rows += [f"n,{10 * k},{k % 7},40,,,,,\n" for k in range(120)]
    (tmp_path / "machine_usage.csv").write_text("".join(rows))
    (trace,) = read_traces(tmp_path / "machine_usage.csv")
    assert trace.meta["frozen"] == "all covariates stand still for 70 iterations of m"


@pytest.mark.parametrize("copies", [[100], [100, 101], [150, 100]], ids=str)
def test_repeated_row_is_no_restart(copies, tmp_path):
    rows = [f"{worker},{step},32,{0.5 + step / 1000}" for step in range(400) for worker in ("w0", "w1")]
    (tmp_path / "job.csv").write_text("\n".join(["worker,iteration,samples,seconds", *rows]) + "\n")
    (once,) = read_traces(tmp_path / "job.csv")
    again = [rows[2 * step + 1] for step in copies]
    lines = ["worker,iteration,samples,seconds", *rows[:402], *again, *rows[402:]]
    (tmp_path / "job.csv").write_text("\n".join(lines) + "\n")
    (trace,) = read_traces(tmp_path / "job.csv")
    assert "restarts" not in trace.meta
    assert trace.meta["rows_dropped"] == str(len(copies))
    np.testing.assert_array_equal(trace.seconds, once.seconds)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_steps_anew_each_epoch_are_no_restart(tmp_path, lengths):
    line = "Epoch: [{epoch}][{step}/99]\tTime 0.5 (0.6)\tData 1 (0.2)"
    places = [(epoch, step) for epoch, length in enumerate(lengths) for step in range(length)]
    (tmp_path / "log.txt").write_text("\n".join(line.format(epoch=epoch, step=step) for epoch, step in places))
    (trace,) = read_traces(tmp_path / "log.txt")
    assert "restarts" not in trace.meta
    assert len(trace.speed) == len(places)
