"""Runs the job of a trainer once, for all tests that ask what came out. It imports nothing heavy itself."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

EXACT = 1e-12


def require(*libraries):
    """Skip the file that calls this where a library is missing."""
    for library in ("torch", *libraries):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed", allow_module_level=True)


def run(job, folder):
    """Run ``tests/<job>.py``, which starts two ranks joined by gloo, and return what its first rank found."""
    script = Path(__file__).with_name(f"{job}.py")
    source = Path(paceline.__file__).parent.parent  # and not the checkout, whose folders have names of other libraries
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "outcomes.json").read_text())


def assert_exact(found):
    """Fail unless a balanced model ended where one process on the same global batches does, with uneven batches."""
    assert found["distance"] < EXACT
    assert found["uneven"] >= 0.5, "sizes hardly differed, so nothing was tested"
