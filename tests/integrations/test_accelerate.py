"""Balanced training with the real Accelerate: as one process on the global batch would train."""

import json
from types import SimpleNamespace

import pytest
import trainer_runs as runs

runs.require("accelerate")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def outcomes(folder):
    """Run every case once and return what came out."""
    return runs.run("accelerate_job", folder)


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("plain", 16),
        ("accumulated", 6),
        ("scaled", 16),
        ("costs", 16),
        ("costs and tokens", 6),
        ("micro-batches", 16),
        ("sharded", 16),
        ("sharded and accumulated", 6),
        ("sharded and tokens", 16),
    ],
)
def test_prepared_job_equals_one_process(outcomes, case, steps):
    found = outcomes[case]
    runs.assert_exact(found)
    assert (found["batches"], found["steps"]) == (16, steps), "the step at an epoch's end was not taken"


def test_two_models_on_same_batches_are_exact(outcomes):
    runs.assert_exact(outcomes["two models"])


def test_schedules_have_the_same_rates(outcomes):
    for found in outcomes["rates"]["scripts"]:
        assert found["balanced"] == found["plain"], found["idiom"]
        assert len(set(found["plain"])) > 1, "the rate never changes, so nothing was tested"
    assert not outcomes["rates"]["warned"]


def test_prepared_scheduler_without_adapter_warns(outcomes):
    found = outcomes["without"]
    assert found["seen"] == 16
    assert found["rates"][-1] == 0, "the schedule is as long as it should be: nothing to warn about"
    assert any("Accelerate steps a prepared scheduler once per process" in said for said in found["warned"])


@pytest.mark.parametrize("case", ["resumed", "sharded and resumed"])
def test_saved_state_resumes_mid_epoch(outcomes, case):
    found = outcomes[case]
    assert found["batches"] == 3, "five of eight batches had been trained"
    assert found["numbers"] == list(range(90))


def test_skipping_batches_refused(outcomes):
    assert "continues with the rest of the epoch by itself" in outcomes["resumed"]["skipped"]


def test_gathered_rows_and_evaluation_unchanged(outcomes):
    assert outcomes["gathered"] == {"rows": list(range(90)), "evaluated": list(range(90))}


def test_metrics_are_written(outcomes, folder):
    header, *lines, ended = (folder / "run.jsonl").read_text("utf-8").splitlines()
    assert "ended" in json.loads(ended)
    assert json.loads(header)["global_batch"] == 12
    assert len(lines) == 16


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no loader", "needs one BalancedLoader, got 0: pass it together with the model"),
        ("micro-batches", "gradient_accumulation_steps=3, but the loader accumulate=2"),
        ("counted twice", "leave gradient_accumulation_steps at 1, compute inside `with loader.balance.accumulating()"),
        ("a stream", "cannot tell Accelerate where the epoch of a StreamLoader ends"),
        ("counts all", "BalancedLoader(dataset, batch_size=...), with the batch_size of your DataLoader"),
        ("counts one", "use paceline.torch.BalancedLoader(dataset, global_batch=...)"),
        ("no model", "needs the model and the BalancedLoader in the same call"),
    ],
)
def test_what_cannot_be_balanced_is_refused(outcomes, case, says):
    assert says in outcomes["refusals"][case]


def test_one_device_needs_no_launcher(outcomes):
    found = outcomes["one device"]
    assert (found["batches"], found["steps"]) == (16, 6)
    assert found["distance"] < runs.EXACT


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"])
def test_model_sharding_refused(kind):
    from paceline.integrations.accelerate import prepare
    from paceline.torch import BalancedLoader

    loader = BalancedLoader(range(10), 4, rank=0, world_size=1)
    accelerator = SimpleNamespace(distributed_type=SimpleNamespace(name=kind), parallelism_config=None)
    with pytest.raises(ValueError, match=f"trains with {kind}"):
        prepare(accelerator, loader)
