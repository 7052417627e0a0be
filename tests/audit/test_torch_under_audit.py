"""Changes of torch for a script under audit, each by itself: clipping, precision, loading processes and seeds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline.audit.comparisons import AuditPlan
from paceline.audit.inside.begin import recorded
from paceline.audit.inside.patches import APART, OWN_CHUNKS, Patches, in_this_process
from paceline.audit.inside.step_recorder import LARGEST, folded, gradients

F = nn.functional


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_are_clipped_unless_steps_start_from_the_same_parameters(tmp_path, frozen):
    norms = []

    def work():
        weight = nn.Parameter(torch.zeros(2))
        for owner in (nn.utils, nn.utils.clip_grad):
            weight.grad = torch.tensor([3.0, 4.0])
            norms.append(float(owner.clip_grad_norm_([weight], 1.0)))
            norms.append(float(weight.grad.norm()))
            owner.clip_grad_value_([weight], 0.125)
            norms.append(float(weight.grad.abs().max()))
        torch.optim.SGD([weight], lr=0.1).step()

    with recorded(AuditPlan(frozen=frozen, precision="float32"), tmp_path, 0):
        work()
    assert norms == pytest.approx([5, 5, 4] * 2 if frozen else [5, 1, 0.125] * 2)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_models_of_ranks_are_made_double_in_a_double_run(tmp_path, monkeypatch, precision):
    seen = []

    def init(wrapper, module, *arguments, **options):
        seen.append((wrapper, module.weight.dtype, arguments, options))

    monkeypatch.setattr(nn.parallel.DistributedDataParallel, "__init__", init)
    monkeypatch.setattr(
        torch.autocast, "__init__", lambda context, *arguments, **options: seen.append((arguments, options))
    )
    with recorded(AuditPlan(steps=1, precision=precision), tmp_path, 0):
        model = nn.Linear(1, 1).float()
        nn.parallel.DistributedDataParallel.__init__("wrapper", model, 1, bucket=2)
        torch.autocast.__init__(None, "cuda", torch.float16, enabled=True, cache_enabled=False)
    assert seen[0] == ("wrapper", getattr(torch, precision), (1,), {"bucket": 2})
    enabled = precision == "float32"
    assert seen[1] == (("cuda", torch.float16), {"enabled": enabled, "cache_enabled": False})
    assert nn.parallel.DistributedDataParallel.__init__ is init


def test_a_loader_has_no_processes_but_for_those_of_the_librarys_own_chunks():
    seen = []

    def before(loader, dataset, batch_size=1, num_workers=0, *, timeout=0, prefetch_factor=None, pin_memory=False):
        seen.append((dataset, batch_size, num_workers, timeout, prefetch_factor, pin_memory))

    init, data = in_this_process(before), [1]
    own = type("Chunks", (), {"__module__": OWN_CHUNKS})()
    init(None, data, 4, 2, timeout=5, prefetch_factor=3, pin_memory=True)
    init(None, own, 4, num_workers=2, timeout=5, prefetch_factor=3)
    init(None, dataset=data)
    assert seen == [(data, 4, 0, 0, None, True), (own, 4, 2, 5, 3, False), (data, 1, 0, 0, None, False)]
    assert init.__name__ == "before"
    assert APART == ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def test_the_changes_are_made_only_while_a_script_runs_and_its_failure_is_seen(tmp_path):
    owners = [(nn.Module, "named_parameters"), (torch.Tensor, "backward"), (F, "mse_loss"), (DataLoader, "__init__")]
    before = [getattr(owner, name) for owner, name in owners]

    def fails():
        with recorded(AuditPlan(), tmp_path, 0):
            assert all(getattr(owner, name) is not one for (owner, name), one in zip(owners, before, strict=True))
            raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        fails()
    assert [getattr(owner, name) for owner, name in owners] == before
    assert not list(tmp_path.iterdir())
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1).step()  # no recorder is told any more


def test_an_attribute_that_a_class_inherits_is_replaced_for_it_alone():
    class Owner:
        def one(self):
            return 1

    class Other(Owner):
        """Has it from another."""

    patches = Patches(None)
    patches.replace(Other, "one", lambda before: lambda self: before(self) + 10)
    assert (Other().one(), Owner().one()) == (11, 1)
    patches.undo()
    assert (Other().one(), Owner().one()) == (1, 1)


def test_seeds_beyond_those_of_numpy_are_wrapped():
    patches = Patches(SimpleNamespace())
    state, seed = np.random.get_state(), 2**32 + 5  # noqa: NPY002
    patches._seed(seed)
    try:
        assert np.random.rand() == np.random.RandomState(5).rand()  # noqa: NPY002
        assert np.random.default_rng(0).random() == np.random.default_rng(given=0).random()
        assert np.random.default_rng(None).random() == np.random.default_rng(seed).random()
    finally:
        patches.undo()
        np.random.set_state(state)  # noqa: NPY002


def test_a_parameter_without_a_gradient_has_one_of_zeros():
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))
    other.grad = torch.tensor([3.0])
    assert {name: part.tolist() for name, part in gradients({"a": one, "b": other}).items()} == {"a": [0, 0], "b": [3]}


def test_a_large_tensor_is_folded_to_signed_sums_of_every_so_many_values():
    assert LARGEST == 2**16
    count = 2 * LARGEST + 3
    weights = torch.zeros(count)
    for places, expected in (([5], 1), ([5, 5 + LARGEST], 2), ([2, 2 + LARGEST, 2 + 2 * LARGEST], 3)):
        weights.zero_()
        signs = []
        for place in places:
            one = torch.zeros(count)
            one[place] = 1
            found = folded(one)
            assert len(found) == LARGEST
            assert np.flatnonzero(found).tolist() == [place % LARGEST]
            signs.append(found[place % LARGEST])
            weights[place] = 1
        assert set(signs) <= {-1, 1}
        assert len(signs) == expected
        assert folded(weights)[places[0] % LARGEST] == sum(signs)
    whole = folded(torch.ones(4 * LARGEST))
    assert set(whole.tolist()) == {-4, -2, 0, 2, 4}
    assert abs(whole.mean()) < 0.05
    assert whole[:9].tolist() == [-2.0, -2.0, 0.0, 0.0, 0.0, -2.0, -4.0, 2.0, -2.0], "the same signs in every run"
    exact = torch.arange(float(LARGEST))
    assert np.array_equal(folded(exact), exact.numpy())
    assert folded(torch.zeros(LARGEST + 1)).dtype == np.float32
