"""Whatever is killed while it writes: what it said is kept, files are whole, and the next start clears up."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from kill_cases import CASES

SOON = ["saps"]
"""Those of which a few kills are quick."""

TESTS = Path(__file__).parent


def killed(case, place, kills, seed):
    folders = [str(TESTS), str(TESTS / "report"), str(TESTS / "engines"), *filter(None, sys.path)]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", "kill_cases", case, str(place), str(kills), str(seed)]
    killer = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = killer.communicate(timeout=3000)
    finally:
        with suppress(ProcessLookupError):  # what it forked too, if this test is over before it is
            os.killpg(killer.pid, signal.SIGKILL)
        killer.wait()
    assert killer.returncode == 0, said


@pytest.mark.parametrize("case", SOON)
def test_a_few_kills(case, tmp_path):
    killed(case, tmp_path, kills=5, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(3100)
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_kills(case, tmp_path):
    if case == "federated" and find_spec("flwr") is None:
        pytest.skip("Flower has an environment of its own: make test-flower")
    killed(case, tmp_path, kills=100, seed=1)
