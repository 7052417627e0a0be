"""The examples: an ordinary script and the same script balanced differ by a few lines, and train."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run_script

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.checkout
@pytest.mark.parametrize(("script", "most"), [("ddp", 10), ("lm", 15), ("crops", 12), ("ray", 11)])
def test_a_script_is_balanced_by_changing_few_lines(script, most):
    before, after = ((EXAMPLES / f"{script}_{name}.py").read_text("utf-8").splitlines() for name in ("before", "after"))
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
    assert len(changes) <= most


@pytest.mark.checkout
def test_the_balanced_script_learns_to_read_digits():
    assert float(said_by("ddp_after.py", r"([\d.]+)% of the digits are recognized")) > 85


@pytest.mark.checkout
def test_language_model_learns_python():
    assert float(said_by("lm_after.py", r"([\d.]+) nats a byte")) < 3.2  # 5.5 any byte, 3.3 by frequency


@pytest.mark.checkout
def test_own_loader_script_learns_python():
    assert float(said_by("crops_after.py", r"([\d.]+) nats a byte")) < 3.2


RAY = """
import os, runpy, ray
path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
few = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 * 2**20}
ray.init(**few, runtime_env={"env_vars": path})
"""
"""Starts a small cluster of Ray, which the example finds."""


@pytest.mark.checkout
@pytest.mark.soak
@pytest.mark.timeout(600)  # a cluster starts slowly where others are busy
def test_the_script_on_ray_train_learns_to_read_digits():
    pytest.importorskip("ray")
    start = [sys.executable, "-c", RAY + "import sys; runpy.run_path(sys.argv[1], run_name='__main__')"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [*start, str(EXAMPLES / "ray_after.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert float(re.search(r"([\d.]+)% of the digits are recognized", ran.stdout)[1]) > 85


def said_by(script, pattern):
    printed, *_ = run_script(2, EXAMPLES / script, within=300)
    found = re.search(pattern, printed)
    assert found, printed
    return found[1]
