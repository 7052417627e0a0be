"""``make gpu``: its parts run on the stand-in where there is no device, and one that fails leaves the rest."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BENCHMARKS = CHECKOUT / "benchmarks"
pytestmark = pytest.mark.checkout

GOOD = "import json, sys; json.dump({'part': 'good', 'tables': [[['a'], ['1']]], 'failed': []}, open(sys.argv[1], 'w'))"
PARTS = {
    "good": GOOD,
    "dies": "import os; print('a last word', flush=True); os.abort()",
    "raises": f"{GOOD}\nraise RuntimeError('after it was written')",
    "hangs": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "gpu_parts"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu


@pytest.mark.processes
def test_gpu_part_that_fails_leaves_the_rest(gpu, tmp_path, monkeypatch):
    for name, source in PARTS.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(gpu, "FOLDER", tmp_path)
    (tmp_path / "out").mkdir()
    found = {name: gpu.run(name, 3.0 if name == "hangs" else 60.0, tmp_path / "out") for name in PARTS}
    assert found["good"]["failed"] == []
    assert "dies ended with -6" in found["dies"]["failed"][0]
    assert "a last word" in found["dies"]["failed"][0]
    assert "after it was written" in found["raises"]["failed"][0]
    assert found["raises"]["tables"] == found["good"]["tables"], "what a part has found is kept"
    assert found["hangs"]["failed"] == ["hangs was not done after 3 s:"]
    assert found["hangs"]["seconds"] < 30


def test_gpu_page_names_device_and_commit(gpu):
    device = {"name": "a card", "torch": "2.13", "cuda": "13.0", "driver": "driver 600", "commit": "abc1234"}
    part = {"part": "added_time", "tables": [[["busy, ms"], ["5"]]], "device": device, "seconds": 1.0}
    late = {"part": "event_clocks", "tables": [], "failed": ["event_clocks was not done after 60 s:"], "seconds": 60.0}
    written = gpu.page([late, part])
    assert all(value in written for value in device.values())
    assert "| busy, ms |\n| --- |\n| 5 |" in written
    assert "Failed: event_clocks was not done after 60 s:" in written


def test_gpu_loops_name_each_way_to_be_wrong(gpu):
    import training_loops as loops

    good = {"failed": "", "off": 1e-16, "every": True, "sizes": [[24, 24], [30, 18]]}
    assert loops.wrong("plain", good) == ""
    assert loops.wrong("plain", {**good, "off": float("nan")}) == "off by nan"
    assert loops.wrong("plain", {**good, "every": False}) == "not every sample was used once"
    assert loops.wrong("plain", {**good, "sizes": [[24, 24]]}) == "sizes never differed"
    assert "where speeds are 10 : 1" in loops.wrong("sizes follow speed, FSDP2", {**good, "sizes": [[24, 24]]})
    assert loops.wrong("plain", {"failed": "ended with -11: "}) == "ended with -11: "


@pytest.mark.processes
def test_gpu_command_runs_on_the_stand_in(tmp_path):
    """A quick part; CI runs all with ``make gpu``."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--part", "device_fits", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "There is no CUDA device here, so a stand-in ran and nothing was measured." in done.stdout
    assert "| gated NARX |" in done.stdout
    assert not (tmp_path / "out").exists()
