"""Balanced training with the real Trainer and with Accelerate: as one process on the global batch would train."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
for library in ("transformers", "accelerate"):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)

import huggingface_job as job  # noqa: E402 (needs torch)

pytestmark = pytest.mark.timeout(120)

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(sys.path),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run every case once, on two ranks joined by gloo, and return what came out and where."""
    folder = tmp_path_factory.mktemp("huggingface")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, job.__file__, str(folder)], env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads((folder / "outcomes.json").read_text()), folder


@pytest.mark.parametrize(
    ("case", "net", "options"),
    [
        ("mean", job.MeanNet, {}),
        ("tokens", job.TokenNet, {"by_tokens": True}),
        ("mean, accumulated", job.MeanNet, {"accumulate": 3}),
        ("tokens, accumulated", job.TokenNet, {"by_tokens": True, "accumulate": 3}),
    ],
)
def test_a_balanced_trainer_trains_as_one_process_does_on_the_global_batch(outcomes, case, net, options):
    found = outcomes[0][case]
    weights, losses = job.alone(net, **options)
    assert found["steps"] == len(losses)
    assert found["weights"] == pytest.approx(weights, abs=1e-12)
    assert found["losses"] == pytest.approx(losses, rel=1e-4), "what is logged is not the loss of the global batch"


def test_sizes_differ_between_ranks_and_change_and_all_of_it_is_written(outcomes):
    lines = (outcomes[1] / "mean" / "run.jsonl").read_text().splitlines()
    sizes = [tuple(json.loads(line)["sizes"]) for line in lines[1:]]
    assert len(sizes) == 15, "the last of 16 iterations is reported at the start of one that never is"
    assert len(set(sizes)) > 5
    assert {sum(pair) for pair in sizes} == {12, 6}


def test_a_checkpoint_resumes_in_the_middle_of_an_epoch_as_if_there_had_been_no_stop(outcomes):
    found, _ = outcomes
    assert found["stopped"]["steps"] == 5
    assert found["resumed"]["steps"] == found["mean"]["steps"] == 16
    assert found["resumed"]["weights"] == pytest.approx(found["mean"]["weights"], abs=1e-12)


def test_accelerate_leaves_the_loader_alone_and_the_model_is_trained_as_by_one_process(outcomes):
    found = outcomes[0]["accelerated"]
    assert len(found["sizes"]) == 16
    assert len(set(found["sizes"])) > 3
    assert found["weights"] == pytest.approx(job.alone(job.MeanNet)[0], abs=1e-12)


def test_without_other_ranks_the_trainer_is_as_it_was():
    from types import SimpleNamespace

    from paceline.coordinator.huggingface import BalancedTrainerMixin

    class Plain:
        args = SimpleNamespace(world_size=1)

        def get_train_dataloader(self):
            return "the Trainer's own"

        def training_step(self, model, inputs, num_items_in_batch):
            return 2.5

    class Balanced(BalancedTrainerMixin, Plain):
        pass

    trainer = Balanced()
    assert trainer.get_train_dataloader() == "the Trainer's own"
    assert trainer.training_step(None, None) == 2.5
    assert trainer.balance is None


def test_a_checkpoint_of_an_unbalanced_run_is_refused_by_name(tmp_path):
    from paceline.coordinator.huggingface import BalancedTrainerMixin, Feed

    class Plain:
        def _load_optimizer_and_scheduler(self, checkpoint):
            pass

    class Balanced(BalancedTrainerMixin, Plain):
        pass

    trainer = Balanced()
    trainer._feed = Feed([], lambda: None)
    with pytest.raises(FileNotFoundError, match=r"holds no paceline\.pt"):
        trainer._load_optimizer_and_scheduler(str(Path(tmp_path)))
