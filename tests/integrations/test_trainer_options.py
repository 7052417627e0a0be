"""What trainers are told, by itself: Lightning's loaders, and the Trainer's options."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.integrations.huggingface_options import _of_arguments, _of_sharding, costs_for, shuffles
from paceline.integrations.lightning import _loader_of
from paceline.torch import BalancedLoader, Costs

DATA = torch.arange(24.0)[:, None]


def loader_of(**options):
    return BalancedLoader(DATA, **{"global_batch": 8, "rank": 0, "world_size": 2, **options})


def lightning(loader, **options):
    plain = {"accumulate_grad_batches": 1, "overfit_batches": 0, "reload_dataloaders_every_n_epochs": 0}
    return SimpleNamespace(train_dataloader=loader, **(plain | options))


@given(st.integers(1, 4), st.integers(1, 4))
def test_loader_takes_lightning_accumulation(told, micro_batches):
    loader = loader_of(accumulate=told)
    trainer = lightning(loader, accumulate_grad_batches=micro_batches)
    if told in (1, micro_batches):
        assert _loader_of(trainer) is loader
        assert loader.accumulate == micro_batches
    else:
        with pytest.raises(
            ValueError, match=f"accumulate_grad_batches={micro_batches}, but the loader accumulate={told}"
        ):
            _loader_of(trainer)


@pytest.mark.parametrize(
    ("loader", "options", "says"),
    [
        ({}, {"overfit_batches": 0.5}, "overfit_batches needs the same batches"),
        ({}, {"reload_dataloaders_every_n_epochs": 1}, "would replace the balanced loader"),
        ({"micro_batch": 2}, {}, "micro_batch= or pack= these differ"),
        ({"pack": True, "costs": Costs(lengths=[1] * 24, cap=8)}, {}, "micro_batch= or pack= these differ"),
        ({"global_batch": None, "costs": Costs(lengths=[1] * 24, global_tokens=8)}, {}, "give global_batch instead"),
    ],
)
def test_conflicting_lightning_options_refused(loader, options, says):
    with pytest.raises(ValueError, match=says):
        _loader_of(lightning(loader_of(**loader), **options))
    with pytest.raises(TypeError, match="must return a BalancedLoader, got list"):
        _loader_of(lightning([]))


WAYS = ["is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "is_model_parallel"]


@settings(max_examples=50)
@given(st.sets(st.sampled_from(WAYS)), st.booleans(), st.sampled_from([None, False, True]))
def test_every_sharding_strategy_refused(ways, parallel, loaded):
    trainer = SimpleNamespace(accelerator=SimpleNamespace(), **{way: way in ways for way in WAYS})
    if parallel:
        trainer.accelerator.parallelism_config = object()
    if loaded is not None:
        trainer.is_distributed_loading_by_transformers = loaded
    expected = {
        "DeepSpeed": "is_deepspeed_enabled" in ways,
        "FSDP": bool({"is_fsdp_enabled", "is_fsdp_xla_enabled"} & ways),
        "a ParallelismConfig": parallel,
        "a model sharded by from_pretrained()": bool(loaded),
        "model parallelism": "is_model_parallel" in ways,
    }
    found = [one.removeprefix("the Trainer is set to use ").partition(", but")[0] for one in _of_sharding(trainer)]
    assert found == [way for way, taken in expected.items() if taken]


def test_trainer_arguments_taken_or_named():
    kept = {
        "split_batches": [False, True],
        "dispatch_batches": [None, False, True],
        "use_seedable_sampler": [True, False],
    }
    for values in product(*kept.values()):
        config = SimpleNamespace(**dict(zip(kept, values, strict=True)))
        plain = {"auto_find_batch_size": False, "accelerator_config": config}
        wrong = [name for name, value in vars(config).items() if value == (name != "use_seedable_sampler")]
        found = list(_of_arguments(SimpleNamespace(**plain)))
        assert [
            one.partition("'s option")[0].partition(" must")[0].removeprefix("accelerator_config's ") for one in found
        ] == wrong
    for options, says in [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"dataloader_in_order": False}, "dataloader_in_order"),
        ({"group_by_length": True}, "train_sampling_strategy must be one of ['random', 'sequential'], got 'group_by"),
        ({"train_sampling_strategy": "other"}, "train_sampling_strategy must be one of"),
    ]:
        plain = {"auto_find_batch_size": False, "accelerator_config": SimpleNamespace(), **options}
        (sentence,) = _of_arguments(SimpleNamespace(**plain))
        assert sentence.startswith(says)
    for options in ({"group_by_length": False, "train_sampling_strategy": "sequential"}, {"dataloader_in_order": True}):
        plain = {"auto_find_batch_size": False, "accelerator_config": SimpleNamespace(), **options}
        assert list(_of_arguments(SimpleNamespace(**plain))) == []


def test_costs_hold_the_numbers_of_all_samples():
    costs = Costs(lengths=lambda sample: int(sample[0]) + 1, cap=90.0)
    found = costs_for(DATA, costs)
    assert list(found.lengths) == [k + 1 for k in range(24)]
    assert found.cap == 90.0
    assert costs_for(DATA, None) is None
    with pytest.raises(ValueError, match="lengths"):
        costs_for(DATA, Costs(lengths=lambda sample: int(sample[0])))


def test_epoch_order_unless_sequential():
    assert shuffles(SimpleNamespace()) is True
    assert shuffles(SimpleNamespace(train_sampling_strategy="random")) is True
    assert shuffles(SimpleNamespace(train_sampling_strategy="sequential")) is False
