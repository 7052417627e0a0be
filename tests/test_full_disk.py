"""A full disk: what does not fit is lost, counted and said; nothing else is lost, and nothing ends the training.

The largest size of a file that the kernel allows a process stands for the disk: writing beyond it fails in the same
way, with a short write and then an error, and the test can give space back.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import iterations

from paceline.recording import JsonLines, Recorder, merge, read_run


def record(recorder, count):
    for _ in range(count):
        with recorder.iteration(samples=8):
            pass


@pytest.mark.slow
def test_recorder_loses_only_what_does_not_fit(tmp_path, room, caplog):
    path = tmp_path / "0.jsonl"
    with Recorder(path, "0") as recorder:
        record(recorder, 5)
        room(path.stat().st_size + 7)  # the next line is cut after 7 bytes
        record(recorder, 3)
        room(None)
        record(recorder, 5)
    assert recorder.lost_iterations == 3
    trace = merge([path])
    assert len(trace) == 10
    assert trace.meta["iterations_lost"] == "worker 0: 3"
    numbers = [json.loads(line)[0] for line in path.read_text("utf-8").splitlines()[1:]]
    assert numbers == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    said = [record.getMessage() for record in caplog.records]
    assert [str(path) in line for line in said] == [True, True, True]
    assert "could not be written and is lost" in said[0]
    assert "written again; 3 were lost" in said[1]
    assert "lacks 3 lines" in said[2]


def test_metrics_lose_only_what_does_not_fit(tmp_path, room, caplog):
    path = tmp_path / "run.jsonl"
    sink = JsonLines(path)
    for record in iterations(12):
        if record.index == 4:
            room(path.stat().st_size + 50)
        if record.index == 9:
            room(None)
        sink(record)
    sink.close()
    run = read_run(path)
    assert run.fleet_columns["index"].tolist() == [0, 1, 2, 3, 9, 10, 11]
    assert (run.skipped_lines, run.lost_records, sink.lost_records) == (0, 5, 5)
    assert "is lost" in caplog.text


def test_no_iteration_without_its_header(tmp_path, room):
    path = tmp_path / "run.jsonl"
    sink = JsonLines(path)
    for record in iterations(2):
        sink(record)
    grown = iterations(4, workers=("gpu0", "gpu1", "gpu2"), speeds=(1000.0, 500.0, 500.0), first=2)
    room(path.stat().st_size)
    sink(next(grown))
    room(None)
    for record in grown:
        sink(record)
    sink.close()
    run = read_run(path)
    assert (len(run), run.skipped_lines, run.lost_records) == (5, 0, 1)
    assert np.isfinite(run.sizes[2:]).all()


def test_a_device_that_is_always_full_ends_nothing(caplog):
    sink = JsonLines("/dev/full")
    for record in iterations(3):
        sink(replace(record))
    sink.close()
    assert sink.lost_records == 3
    assert "No space left on device" in caplog.text


REAL = """
import os, sys
from paceline.recording import Recorder, merge
filler = open("filler", "wb", buffering=0)
with Recorder("0.jsonl", "0") as recorder:
    def record(count):
        for _ in range(count):
            with recorder.iteration(samples=8):
                pass
    record(5)
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
    record(300)
    os.unlink("filler")
    filler.close()
    record(5)
assert 0 < recorder.lost_iterations < 300, recorder.lost_iterations
assert len(merge(["0.jsonl"])) == 310 - recorder.lost_iterations
print("all was kept")
"""


def mounted(options, folder, code):
    """Run code in a folder on a file system of its own, which this process does not see; skip where that is refused."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "CODE": code}
    unshared = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*unshared, f"mount -t tmpfs none {folder}"]).returncode:
        pytest.skip("no file system can be mounted here")
    inside = f'mount -t tmpfs -o {options} none {folder} && cd {folder} && {sys.executable} -c "$CODE"'
    done = subprocess.run([*unshared, inside], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "all was kept\n", done.stderr
    return done.stderr


def test_a_file_system_that_is_really_full_is_survived(tmp_path):
    assert "No space left on device" in mounted("size=64k", tmp_path, REAL)


READ_ONLY = """
import sys
sys.path.insert(0, {tests!r})
from recorded_runs import JsonLines, iterations
from paceline.recording import Recorder
sink = JsonLines("run.jsonl")
for record in iterations(3):
    sink(record)
try:
    Recorder("0.jsonl", "0").__enter__()
except OSError as error:
    assert "0.jsonl" in str(error)
    print("all was kept")
"""


def test_read_only_disk_refuses_recording(tmp_path):
    said = mounted("ro", tmp_path, READ_ONLY.format(tests=str(Path(__file__).parent)))
    assert said.count("no more metrics are written by JsonLines") == 1
