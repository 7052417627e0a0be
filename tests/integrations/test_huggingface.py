"""Balanced training with the real Trainer: as one process on the global batch would train."""

import json

import pytest
import trainer_runs as runs

runs.require("transformers", "accelerate")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("huggingface")


@pytest.fixture(scope="module")
def outcomes(folder):
    """Run every case once and return what came out."""
    return runs.run("huggingface_job", folder)


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("mean", 16),
        ("tokens", 16),
        ("mean, accumulated", 6),
        ("tokens, accumulated", 6),
        ("own tokens", 16),
        ("own tokens, accumulated", 6),
        ("scaled tokens, accumulated", 6),
        ("costs", 16),
        ("costs, tokens", 16),
        ("packed rows, tokens", 16),
        ("compiled", 4),
        ("resumed", 6),
        ("options", 8),
        ("sharded", 16),
        ("sharded, tokens", 6),
        ("sharded, resumed", 6),
    ],
)
def test_a_balanced_trainer_trains_as_one_process_does(outcomes, case, steps):
    found = outcomes[case]
    runs.assert_exact(found)
    assert found["steps"] == steps
    allowed = 0.05 if case.startswith(("own", "scaled")) else 1e-4  # whose log weights samples, not tokens
    assert found["logged"] == pytest.approx(found["losses"], rel=allowed), "the global batch's loss is not logged"


def test_epoch_end_step_after_mid_epoch_resume(outcomes):
    """Its last step has two micro-batches and not three."""
    found = outcomes["resumed"]
    assert (found["stopped"], found["steps"], found["batches"]) == (2, 6, 16)


@pytest.mark.parametrize("case", ["classes", "numbers"])
def test_unused_token_count_weights_by_samples(outcomes, case):
    found = outcomes[case]
    assert found["distance"] < runs.EXACT


def test_peek_and_second_training_change_nothing(outcomes):
    found = outcomes["twice"]
    assert (found["peeked"], found["batches"]) == (6, 16)
    runs.assert_exact(found)


def test_new_model_and_batch_size_balanced_again(outcomes):
    found = outcomes["anew"]
    assert found["global_batch"] == 8
    runs.assert_exact(found)


def test_sequential_order_is_kept(outcomes):
    assert outcomes["ordered"] == list(range(12))


def test_changing_sizes_are_written(outcomes, folder):
    lines = (folder / "mean" / "run.jsonl").read_text("utf-8").splitlines()
    assert "ended" in json.loads(lines[-1])
    sizes = [tuple(json.loads(line)["sizes"]) for line in lines[1:-1]]
    assert len(sizes) == 16
    assert len(set(sizes)) > 5
    assert {sum(pair) for pair in sizes} == {12, 6}


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("train_sampling_strategy=group_by_length", "train_sampling_strategy must be one of"),
        ("train_sampling_strategy=batch_rebalance", "train_sampling_strategy must be one of"),
        ("auto_find_batch_size=True", "auto_find_batch_size must be False"),
        ("dataloader_in_order=False", "dataloader_in_order must be True"),
        ("average_tokens_across_devices=False", "average_tokens_across_devices must be True"),
        ("split_batches=True", "split_batches must be False"),
        ("dispatch_batches=True", "dispatch_batches must be False"),
        ("use_seedable_sampler=False", "use_seedable_sampler must be True"),
        ("train_dataset=stream", "dataset must be map-style"),
        ("is_fsdp_enabled=True", "set to use FSDP1"),
        ("is_deepspeed_enabled=True", "set to use DeepSpeed"),
        ("parallelism_config=any", "set to use a ParallelismConfig"),
        ("a sampler", "Sampling._get_train_sampler chooses the samples"),
        ("a loader", "Loading.get_train_dataloader chooses the samples"),
        ("a loader above", "PlainLoading trains on batches that are not balanced"),
        ("a packed batch", "the model's inputs have 1 rows"),
        ("a budget", "costs must not set global_tokens"),
        ("a checkpoint", "has no paceline.pt"),
    ],
)
def test_what_would_be_ignored_is_refused(outcomes, option, says):
    assert says in outcomes["refusals"][option]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("routed", "A part of the loss is divided by the number of tokens of all ranks"),
        ("repeated", "full_determinism cannot make runs repeat"),
    ],
)
def test_what_cannot_be_exact_is_warned_about(outcomes, case, says):
    assert any(says in sentence for sentence in outcomes["warned"][case])


@pytest.mark.parametrize("case", ["tokens", "scaled"])
def test_one_device_needs_no_launcher(outcomes, case):
    found = outcomes["one device"][case]
    assert found["steps"] == 6
    assert found["distance"] < runs.EXACT
