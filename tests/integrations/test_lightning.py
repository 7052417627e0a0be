"""Balanced training with the real Lightning and Fabric: as one process on the global batch would train."""

import json

import pytest
import trainer_runs as runs

runs.require("lightning")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def outcomes(folder):
    """Run every case once and return what came out."""
    return runs.run("lightning_job", folder)


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("plain", 16),
        ("accumulated", 6),
        ("scheduled", 6),
        ("options", 16),
        ("limited", 10),
        ("tokens", 16),
        ("costs", 16),
        ("costs and tokens", 6),
        ("manual", 6),
        ("sharded", 16),
        ("sharded and accumulated", 6),
    ],
)
def test_lightning_equals_one_process(outcomes, case, steps):
    found = outcomes[case]
    runs.assert_exact(found)
    assert found["steps"] == steps
    assert found["validated"], "there was no validation in between"
    assert found["closed"], "the balancer stays on a model that Lightning has unwrapped"


def test_two_optimizers_are_exact(outcomes):
    runs.assert_exact(outcomes["adversaries"])


def test_synchronized_layers_are_exact(outcomes):
    runs.assert_exact(outcomes["synchronized"])


@pytest.mark.parametrize("case", ["plain", "sharded"])
def test_checkpoint_resumes_mid_epoch(outcomes, case):
    resumed = outcomes[case]["resumed"]
    runs.assert_exact(resumed)
    assert (resumed["batches"], resumed["steps"]) == (16, 16)
    assert resumed["losses"] == outcomes[case]["losses"]


def test_refit_continues_epoch_count(outcomes):
    found = outcomes["twice"]
    runs.assert_exact(found)
    new, anew, on = (
        [sorted(row for part in parts for row in part) for parts in zip(*seen_R, strict=True)]
        for seen_R in found["orders"]
    )
    assert new == anew, "a new Trainer begins with the first epoch"
    assert new != on, "the same Trainer goes on with the second epoch"


def test_metrics_are_written_by_the_first_rank(outcomes, folder):
    header, *lines, ended = (folder / "accumulated" / "run.jsonl").read_text("utf-8").splitlines()
    assert "ended" in json.loads(ended)
    assert json.loads(header)["global_batch"] == 36, "three micro-batches of 12"
    assert len(lines) == 6


@pytest.mark.parametrize("case", ["lightning", "fabric"])
def test_one_device_needs_no_launcher(outcomes, case):
    found = outcomes["one device"][case]
    assert found["batches"] == 16
    assert found["distance"] < runs.EXACT


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("a plain loader", "must return a BalancedLoader, got DataLoader"),
        ("sharded layers", "got ModelParallelStrategy with 2 such networks"),
        ("overfit_batches", "overfit_batches needs the same batches in every epoch"),
        ("reload_dataloaders_every_n_epochs", "would replace the balanced loader"),
        ("accumulate", "accumulate_grad_batches=3, but the loader accumulate=2"),
        ("micro-batches", "the same number of batches on every rank"),
        ("a budget of tokens", "Lightning reads the number of batches once"),
    ],
)
def test_what_cannot_be_balanced_is_refused(outcomes, case, says):
    assert says in outcomes["refusals"][case]


@pytest.mark.parametrize("case", ["plain", "accumulated", "compiled", "resumed", "resumed by the loader", "sharded"])
def test_fabric_equals_one_process(outcomes, case):
    runs.assert_exact(outcomes["fabric"][case])


def test_fabric_does_not_replace_the_loader(outcomes):
    assert "Only PyTorch DataLoader" in outcomes["fabric"]["set up"]
