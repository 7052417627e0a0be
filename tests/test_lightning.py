"""Balanced training with the real Lightning: as one process on the global batch would train."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

import huggingface_job as job

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run every case once, on two ranks joined by gloo, and return what came out and where."""
    folder = tmp_path_factory.mktemp("lightning")
    script = Path(__file__).with_name("lightning_job.py")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(script), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "outcomes.json").read_text()), folder


@pytest.mark.parametrize(
    ("case", "options"), [("plain", {}), ("accumulated", {"accumulate": 3, "of_whole_steps": True})]
)
def test_balanced_lightning_trains_as_one_process_does_on_the_global_batch(outcomes, case, options):
    found = outcomes[0][case]
    weights, losses = job.alone(job.MeanNet, **options)
    assert found["steps"] == len(losses)
    assert found["weights"] == pytest.approx(weights, abs=1e-12)
    assert len(set(found["sizes"])) > 3, "sizes did not change"


def test_a_checkpoint_resumes_in_the_middle_of_an_epoch_as_if_there_had_been_no_stop(outcomes):
    plain, resumed = outcomes[0]["plain"], outcomes[0]["resumed"]
    assert len(plain["sizes"]) == 16
    assert len(resumed["sizes"]) == 11, "five of 16 batches had been trained"
    assert resumed["weights"] == pytest.approx(plain["weights"], abs=1e-12)


def test_metrics_are_written_by_the_first_rank(outcomes):
    header, *lines = (outcomes[1] / "plain" / "run.jsonl").read_text().splitlines()
    assert json.loads(header)["global_batch"] == job.GLOBAL_BATCH
    assert len(lines) == 15, "the last of 16 iterations is reported at the start of one that never is"


def test_a_loader_that_does_not_know_of_gradient_accumulation_is_refused(outcomes):
    assert "give BalancedLoader(accumulate=3), got 1" in outcomes[0]["refused"]
