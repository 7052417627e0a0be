"""Flower's own simulation, and its own processes on loopback. Needs flwr (make test-flower)."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from flower_processes import SOURCES, federation, submitted

from paceline.recording import read_run

HERE = Path(__file__).parents[1]
EXAMPLES = HERE.parent / "examples"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def simulated(clients, folder, **given):
    words = [f"{name}={value}" for name, value in given.items()]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SOURCES, str(HERE / "flower_app")]),
        "OMP_NUM_THREADS": "1",
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    command = [sys.executable, str(HERE / "flower_simulation.py"), str(clients), *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_simulation_gives_slow_clients_less(tmp_path):
    for equal in ("true", "false"):
        simulated(3, tmp_path, record=tmp_path / f"{equal}.jsonl", equal=equal, rounds=4)
    plain, ours = (read_run(tmp_path / f"{equal}.jsonl") for equal in ("true", "false"))
    assert np.all(plain.sizes == 50)
    assert np.all(ours.sizes.sum(axis=1) == 150)
    slowest_last = np.argsort(plain.seconds[-1])  # the same nodes have other ids in another run
    assert np.all(np.diff(plain.seconds[-1][slowest_last]) > 0)
    by_speed = np.argsort(ours.seconds[-1] / ours.sizes[-1])
    assert np.all(np.diff(ours.sizes[-1][by_speed]) < 0)
    expected = ours.forecast_seconds[-1]
    assert expected.max() < 1.15 * np.median(expected)


def test_real_processes_balance_and_resume(tmp_path):
    given = {"clients": 2, "state": tmp_path / "state.npz"}
    with federation(tmp_path, clients=2):
        first = submitted(tmp_path, rounds=2, record=tmp_path / "first.jsonl", **given)
        second = submitted(tmp_path, rounds=1, record=tmp_path / "second.jsonl", **given)
    assert (tmp_path / "second.jsonl").is_file(), first[-2000:] + second[-2000:]
    before, after = (read_run(tmp_path / f"{name}.jsonl") for name in ("first", "second"))
    assert before.why[0] == "2 clients asked: equal batches, as no client has reported yet."
    assert set(after.workers) == set(before.workers)
    assert "never seen" not in after.why[0]
    assert after.fleet_columns["index"].tolist() == [2]
    assert np.all(before.worker_columns["comm_seconds"] > 0)  # round trips are measured there


@pytest.mark.checkout
def test_example_differs_by_five_lines():
    changed = 0
    for name in ("server_app.py", "client_app.py", "task.py", "pyproject.toml"):
        before, after = (
            (EXAMPLES / f"flower_{when}" / name).read_text("utf-8").splitlines() for when in ("before", "after")
        )
        code = [line for line in after if line.strip()]
        changed += len(code) - sum(line in before for line in code)
    assert 0 < changed <= 5


@pytest.mark.checkout
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_examples_run_and_learn(when, tmp_path):
    pytest.importorskip("torch")
    code = (
        "import client_app, server_app\n"
        "from flwr.simulation import run_simulation\n"
        "share = {'client_resources': {'num_cpus': 0.5, 'num_gpus': 0.0}, 'init_args': {'num_cpus': 1}}\n"
        "run_simulation(server_app=server_app.app, client_app=client_app.app, num_supernodes=2, backend_config=share)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SOURCES, str(EXAMPLES / f"flower_{when}")]),
        "OMP_NUM_THREADS": "1",
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert "loss of the last round: 1." in done.stdout, done.stderr[-3000:]
