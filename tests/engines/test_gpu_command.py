"""``make gpu``: its parts run on the stand-in where there is no device, and one that fails leaves the rest."""

import re
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
def test_a_part_that_fails_says_how_and_leaves_the_rest(gpu, tmp_path, monkeypatch):
    for name, source in PARTS.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(gpu, "FOLDER", tmp_path)
    found = {name: gpu.run(name, 3.0 if name == "hangs" else 60.0) for name in PARTS}
    assert found["good"]["failed"] == []
    assert "dies ended with -6" in found["dies"]["failed"][0]
    assert "a last word" in found["dies"]["failed"][0]
    assert "after it was written" in found["raises"]["failed"][0]
    assert found["raises"]["tables"] == found["good"]["tables"], "what a part has found is kept"
    assert found["hangs"]["failed"] == ["hangs was not done after 3 s:"]
    assert found["hangs"]["seconds"] < 30


def test_all_parts_together_take_less_than_ten_minutes_and_have_a_heading(gpu):
    from gpu_page import HEADINGS

    assert sum(gpu.PARTS.values()) < 600
    assert list(gpu.PARTS) == list(HEADINGS)
    assert all((gpu.FOLDER / f"{part}.py").is_file() for part in gpu.PARTS)


def test_the_page_names_the_device_its_driver_and_the_commit(gpu):
    from gpu_page import page

    device = {"name": "a card", "torch": "2.13", "cuda": "13.0", "driver": "driver 600", "commit": "abc1234"}
    part = {"part": "added_time", "tables": [[["busy, ms"], ["5"]]], "device": device, "seconds": 1.0}
    late = {"part": "event_clocks", "tables": [], "failed": ["event_clocks was not done after 60 s:"], "seconds": 60.0}
    written = page([late, part])
    assert all(value in written for value in device.values())
    assert "python benchmarks/gpu.py" in written
    assert "| busy, ms |\n| --- |\n| 5 |" in written
    assert "Failed: event_clocks was not done after 60 s:" in written


def test_a_page_of_the_device_exists_only_if_one_has_run():
    page = BENCHMARKS / "gpu.md"
    assert not page.exists() or re.search(r"commit [0-9a-f]{7,}", page.read_text())
    assert page.exists() == (BENCHMARKS / "gpu_curves.csv").exists()


def test_the_command_runs_on_the_stand_in_and_says_what_it_could_not(tmp_path):
    """A quick part; CI runs all with ``make gpu``."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    chosen = ["--part", "device_fits"]
    before = {path: path.read_bytes() for path in BENCHMARKS.glob("gpu*.[mc]*")}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *chosen], capture_output=True, text=True, cwd=tmp_path, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("There is no CUDA device here, so a stand-in ran and nothing was measured.")
    assert "What a device is worth to a fit." in last
    assert "| gated NARX | mixed |" in done.stdout
    assert {path: path.read_bytes() for path in BENCHMARKS.glob("gpu*.[mc]*")} == before
