"""What a loader is asked for it does, or refuses in a sentence that says what to use instead."""

import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from paceline.torch import BalancedLoader

pytestmark = pytest.mark.timeout(60)


def made(dataset=None, **options):
    dataset = range(40) if dataset is None else dataset
    return BalancedLoader(dataset, **{"global_batch": 8, "rank": 0, "world_size": 2, **options})


DRAWS = "the loader draws every global batch itself, by shuffle= and seed="


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("shufle", r"did you mean shuffle\?"),
        ("worldsize", r"did you mean world_size\?"),
        ("batch_sampler", DRAWS),
        ("generator", DRAWS),
        ("batch_size", "pass global_batch, the samples of all ranks together"),
        ("persistent_workers", "loading processes always persist from epoch to epoch, so leave it out"),
        ("lengths", r"it is a part of costs=Costs\(...\)"),
        ("xyz", "it takes global_batch, rank, world_size, shuffle"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(name, instead, num_workers):
    with pytest.raises(TypeError, match=f"BalancedLoader has no option {name}: {instead}"):
        made(num_workers=num_workers, **{name: None})


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"accumulate": True}, TypeError, "accumulate must be a whole number, got True"),
        ({"accumulate": 2.0}, TypeError, "accumulate must be a whole number, got 2.0"),
        ({"accumulate": 0}, ValueError, "accumulate must be at least 1 micro-batch, got 0"),
        ({"global_batch": None}, TypeError, "global_batch must be a whole number, got None"),
        ({"global_batch": 8.0}, TypeError, "global_batch must be a whole number, got 8.0"),
        ({"global_batch": 1}, ValueError, "global_batch must be at least 2 samples, one for each rank, got 1"),
        ({"num_workers": -1}, ValueError, "num_workers must be at least 0, got -1"),
        ({"num_workers": True}, TypeError, "num_workers must be a whole number, got True"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1 batch, got 0"),
        ({"rank": 7}, ValueError, r"rank must lie in \[0, 2\), as there are 2 ranks, got 7"),
        ({"rank": -1}, ValueError, "rank must be at least 0, got -1"),
        ({"world_size": 0}, ValueError, "world_size must be at least 1 rank, got 0"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"timeout": -1}, ValueError, "timeout must be at least 0 seconds, got -1"),
        (
            {"timeout": 5},
            ValueError,
            "timeout applies to loading processes only: set num_workers above 0, or leave it out",
        ),
        ({"multiprocessing_context": "spawn"}, ValueError, "multiprocessing_context applies to loading processes only"),
        ({"micro_batch": 0}, ValueError, "micro_batch must be at least 1 sample, got 0"),
        ({"micro_batch": 2, "accumulate": 2}, ValueError, "micro_batch= makes each global batch a step"),
        ({"accumulate": "balance"}, TypeError, "accumulate must be a whole number, got 'balance'"),
        ({"global_batch": 41, "drop_last": True}, ValueError, "drop_last would leave out all 40 samples"),
    ],
)
def test_invalid_value_refused_by_name(options, error, told):
    with pytest.raises(error, match=told):
        made(**options)


def test_an_epoch_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        made().set_epoch(-1)


@pytest.mark.parametrize(
    ("name", "instead"), [("sampler", "set_epoch"), ("batch_size", "global_batch"), ("x", "no x$")]
)
def test_torch_loader_attributes_explained(name, instead):
    loader = made()
    assert not hasattr(loader, name)
    with pytest.raises(AttributeError, match=instead):
        getattr(loader, name)


def test_sizes_are_read_only():
    loader = made()
    with pytest.raises(ValueError, match="read-only"):
        loader.sizes[0] = 7


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_a_loader_is_as_long_as_its_epoch(data, samples, world_size, drop_last):
    world_size = min(world_size, samples)
    global_batch = data.draw(st.integers(world_size, samples if drop_last else 70))
    loader = BalancedLoader(range(samples), global_batch, rank=0, world_size=world_size, drop_last=drop_last)
    totals = []
    for _ in loader:
        assert loader.batch_sizes.min() > 0
        totals.append(int(loader.batch_sizes.sum()))
    assert len(loader) == len(totals)
    assert sum(totals) == (samples // global_batch * global_batch if drop_last else samples)
    assert all(total == global_batch for total in totals[:-1])


# -- how it loads -------------------------------------------------------------------------------------------------


class Tells(torch.utils.data.Dataset):
    """Its samples tell who loaded them, and what was done to the dataset when that began."""

    offset = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = get_worker_info()
        return index, -1 if info is None else info.id, self.offset


def shift(number):
    info = get_worker_info()
    assert isinstance(info.dataset, Tells)
    info.dataset.offset = 100 + number


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start", "workers", "loops"),
    [("fork", 2, 2), (multiprocessing.get_context("fork"), 2, 2), ("spawn", 1, 1)],  # spawned ones import torch anew
)
def test_loading_processes_start_as_asked(start, workers, loops):
    loader = made(Tells(), num_workers=workers, worker_init_fn=shift, multiprocessing_context=start, timeout=30)
    batches = [batch for _ in range(loops) for batch in loader]
    seen = [row for batch in batches for row in zip(*(part.tolist() for part in batch), strict=True)]
    assert {number for _, number, _ in seen} == set(range(workers))
    assert all(offset == 100 + number for _, number, offset in seen)
    assert len(seen) == 20 * loops


@pytest.mark.processes
def test_unresponsive_loading_process_ends_loop():
    class Sleeps(Tells):
        def __getitem__(self, index):
            import time

            time.sleep(0.5)

    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(iter(made(Sleeps(), num_workers=1, timeout=1)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pinned_memory_without_a_device_is_told(num_workers, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="pin_memory=True has no effect, as no CUDA device"):
        loader = made(pin_memory=True, num_workers=num_workers)
    assert len(list(loader)) == 5


@pytest.mark.parametrize("collate", [None, torch.tensor])
def test_every_batch_is_pinned_where_there_is_a_device(collate, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda batch, *_: pinned.append(batch) or batch)
    batches = list(made(pin_memory=True, collate_fn=collate))
    assert [len(batch) for batch in batches] == [4] * 5
    assert [id(batch) for batch in batches] == [id(batch) for batch in pinned]
