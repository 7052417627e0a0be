"""The balanced loader: every sample once per epoch for any sizes, exact resumes, and new sizes at once."""

import gc
import multiprocessing
import sys
import time
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from functools import partial
from itertools import combinations
from types import MappingProxyType
from weakref import ref

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.torch import BalancedLoader, Costs


def random_sizes(rng, world_size, global_batch):
    return 1 + rng.multinomial(global_batch - world_size, rng.dirichlet(np.ones(world_size)))


def fleet(dataset, world_size, **options):
    return [BalancedLoader(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def change_sizes(loaders, seed, skip=0):
    """Change the sizes before every batch, equally on every rank, as after this many batches."""
    for loader in loaders:
        rng = np.random.default_rng(seed)
        for _ in range(skip):
            random_sizes(rng, loader.world_size, loader.global_batch)

        def change(known=ref(loader), rng=rng):  # noqa: B008 - weakly: loading processes end late if their loader is in a cycle
            known().sizes = random_sizes(rng, known().world_size, known().global_batch)

        loader.before_batch = change


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epoch_covers_every_sample_once(num_workers):
    data = TensorDataset(torch.arange(103), torch.arange(103.0) * 2)
    loaders = fleet(data, 3, global_batch=20, num_workers=num_workers, seed=7)
    change_sizes(loaders, seed=1)
    for _ in range(2):
        seen = []
        for batches in zip(*loaders, strict=True):
            for loader, (numbers, doubles) in zip(loaders, batches, strict=True):
                assert len(numbers) == loader.batch_sizes[loader.rank]
                assert torch.equal(doubles, numbers * 2.0)
                seen += numbers.tolist()
        assert sorted(seen) == list(range(103))


def test_orders_differ_by_epoch_and_by_seed():
    def epochs(seed):
        (loader,) = fleet(range(103), 1, global_batch=20, seed=seed)
        return [torch.cat(list(loader)).tolist() for _ in range(3)]

    assert epochs(1) == epochs(1)
    orders = [*epochs(1), *epochs(2), list(range(103))]
    assert all(one != other for one, other in combinations(orders, 2))


@pytest.mark.processes
@pytest.mark.parametrize("collate", [None, list])
def test_loading_ahead_keeps_samples_and_sizes(collate):
    """A new size holds from the next batch on, however many batches were loaded ahead."""
    (loader,) = fleet(TensorDataset(torch.arange(60)), 1, global_batch=10, num_workers=1, collate_fn=collate)
    two = BalancedLoader(loader.dataset, 10, rank=0, world_size=2, num_workers=2, prefetch_factor=3, collate_fn=collate)
    assert sum(len(batch if collate else batch[0]) for batch in loader) == 60
    wanted = [5, 5, 9, 9, 1, 3]
    lengths = []
    for index, batch in enumerate(two):
        lengths.append(len(batch if collate else batch[0]))
        following = wanted[min(index + 1, 5)]
        two.sizes = np.array([following, 10 - following])
    assert lengths == wanted


@pytest.mark.parametrize(("samples", "lengths"), [(24, [10, 10, 4]), (22, [10, 12]), (20, [10, 10]), (5, [5])])
def test_last_batch_takes_the_rest(samples, lengths):
    loaders = fleet(range(samples), 3, global_batch=10)
    totals = []
    for batches in zip(*loaders, strict=True):
        assert all(len(batch) for batch in batches)
        totals.append(sum(len(batch) for batch in batches))
    assert totals == lengths
    assert len(loaders[0]) == len(lengths)


def test_drop_last_leaves_out_partial_batch():
    (loader,) = fleet(range(24), 1, global_batch=10, drop_last=True)
    assert [len(batch) for batch in loader] == [10, 10]
    assert len(loader) == 2


@pytest.mark.parametrize(
    ("samples", "sizes", "last"), [(24, [18, 2], [2, 2]), (24, [19, 1], [3, 1]), (23, [18, 2], [2, 1])]
)
def test_last_batch_leaves_two_samples_per_rank(samples, sizes, last):
    loader = BalancedLoader(range(samples), 20, rank=0, world_size=2)
    loader.sizes = np.array(sizes)
    for _ in loader:
        pass
    assert loader.batch_sizes.tolist() == last


@pytest.mark.parametrize("num_workers", [0, 1])
def test_resumed_epoch_continues_exactly(num_workers):
    def made():
        loaders = fleet(range(50), 2, global_batch=8, seed=3, num_workers=num_workers)
        change_sizes(loaders, seed=5)
        return loaders

    def numbers(loader, skip=0):
        return [batch.tolist() for batch in loader][skip:]

    whole = [numbers(loader, skip=3) for loader in made()]
    resumed = []
    for loader in made():
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        fresh = BalancedLoader(range(50), 8, rank=loader.rank, world_size=2, seed=3, num_workers=num_workers)
        fresh.load_state_dict(loader.state_dict())
        change_sizes([fresh], seed=5, skip=3)
        resumed.append(numbers(fresh))
    assert resumed == whole


@pytest.mark.parametrize("num_workers", [0, 1])
def test_astray_rank_follows_the_others(num_workers):
    first, second = fleet(range(40), 2, global_batch=8, num_workers=num_workers)
    batches, others = iter(first), iter(second)
    next(batches)
    second.sizes = np.array([1, 7])
    next(others)  # cut with sizes that the first rank does not know
    second.sizes = np.array([4, 4])
    second.sync_from(first.position_state())
    rest = [*batches, *others]
    assert [len(batch) for batch in rest] == [4] * 8
    assert len(set(torch.cat(rest).tolist())) == 32


def test_a_state_of_other_data_is_refused():
    state = BalancedLoader(range(50), 8, rank=0, world_size=2).state_dict()
    other = BalancedLoader(range(51), 8, rank=0, world_size=2)
    with pytest.raises(ValueError, match="saved with samples=50, but this loader has 51"):
        other.load_state_dict(state)


def test_sizes_move_only_between_optimizer_steps():
    loader = BalancedLoader(range(60), 10, rank=0, world_size=2, accumulate=3)
    change_sizes([loader], seed=3)
    lengths = [len(batch) for batch in loader]
    assert len(set(lengths[:3])) == len(set(lengths[3:])) == 1
    assert lengths[0] != lengths[3]


@pytest.mark.parametrize("collate", [None, torch.tensor])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_micro_batches_make_up_the_part(most, collate):
    options = {"rank": 1, "world_size": 2, "collate_fn": collate}
    whole = BalancedLoader(range(50), 8, **options)
    loader = BalancedLoader(range(50), 8, micro_batch=most, **options)
    change_sizes([whole, loader], seed=3)
    parts = iter(loader)
    for batch in whole:
        numbers = []
        while not numbers or not loader.step_ends:
            part = next(parts).tolist()
            assert 1 <= len(part) <= most
            numbers += part
        assert numbers == batch.tolist()
        assert loader.position == whole.position
    assert next(parts, None) is None


@pytest.mark.parametrize("sizes", [[10, 0], [5, 4], [5, 5, 0]])
def test_losing_or_empty_sizes_refused(sizes):
    loader = BalancedLoader(range(60), 10, rank=0, world_size=2)
    with pytest.raises(ValueError, match="sum to the global batch of 10"):
        loader.sizes = np.array(sizes)


def test_on_demand_order_is_the_epochs():
    """So a balanced job sees the very batches of one process."""
    loaders = fleet(range(103), 3, global_batch=20, seed=7)
    change_sizes(loaders, seed=1)
    alone = fleet(range(103), 1, global_batch=20, seed=7)[0]
    for batches, whole in zip(zip(*loaders, strict=True), alone, strict=True):
        assert torch.cat(batches).tolist() == whole.tolist()


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_constant_batch_enters_few_functions(options):
    loader = BalancedLoader(TensorDataset(torch.arange(800)), 32, rank=0, world_size=2, **options)
    loop, called = iter(loader), []
    for _ in range(4):
        next(loop)

    def note(frame, event, _):
        if event == "call" and "/paceline/torch/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        next(loop)
    finally:
        sys.setprofile(None)
    assert 3 <= len(called) <= 8, called


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sizes_and_shares_equal_without_costs(num_workers):
    plain = BalancedLoader(range(40), 8, rank=0, world_size=2, num_workers=num_workers)
    plain.shares = np.array([5, 3])
    assert plain.sizes.tolist() == [5, 3]
    assert len(next(iter(plain))) == 5
    costly = BalancedLoader(range(40), 8, rank=0, world_size=2, num_workers=num_workers, costs=Costs(cost=range(1, 41)))
    costly.shares = np.array([5, 3])
    for set_or_ask in (lambda: costly.sizes, lambda: setattr(costly, "sizes", np.array([5, 3]))):
        with pytest.raises(AttributeError, match=r"BalancedLoader has no sizes: .*shares= divides their work"):
            set_or_ask()
    assert not hasattr(costly, "sizes")


Pair = namedtuple("Pair", ["image", "name"])


def two_columns(kind, samples):
    return kind({"x": torch.tensor(samples), "y": [str(sample) for sample in samples]})


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind",
    [
        dict,
        OrderedDict,
        UserDict,
        partial(defaultdict, list),
        MappingProxyType,
        lambda parts: Pair(parts, [*parts["y"]]),
    ],
    ids=["dict", "ordered", "user", "default", "proxy", "named tuple"],
)
def test_batches_of_new_sizes_keep_their_kind(kind):
    """What processes have loaded at the old size is cut, and joined with what is loaded now."""
    fork = multiprocessing.get_context("fork")  # pickles no lambda
    options = {"shuffle": False, "num_workers": 1, "multiprocessing_context": fork}
    loader = BalancedLoader(range(30), 10, rank=0, world_size=2, collate_fn=partial(two_columns, kind), **options)
    wanted, whole = [5, 7, 2], two_columns(kind, [0])
    for number, batch in enumerate(loader):
        assert type(batch) is type(whole)
        assert getattr(batch, "default_factory", None) is getattr(whole, "default_factory", None)
        rows = batch.image if isinstance(batch, Pair) else batch
        assert len(rows["x"]) == wanted[number]
        assert rows["y"] == [str(sample) for sample in rows["x"].tolist()]
        following = wanted[min(number + 1, 2)]
        loader.sizes = np.array([following, 10 - following])
    assert number == 2


class Counts(torch.utils.data.Dataset):
    """Counts how often each sample is read, in whichever process."""

    def __init__(self, samples):
        self.reads = multiprocessing.get_context("fork").Array("i", samples)

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        with self.reads.get_lock():
            self.reads[index] += 1
        return index


@pytest.mark.processes
@pytest.mark.parametrize("prefetch", [1, 4])
def test_loading_ahead_reads_nothing_twice(prefetch):
    data = Counts(240)
    fork = multiprocessing.get_context("fork")
    options = {"num_workers": 2, "prefetch_factor": prefetch, "multiprocessing_context": fork}
    loader = BalancedLoader(data, 12, rank=0, world_size=2, **options)
    change_sizes([loader], seed=4)
    seen = [sample for batch in loader for sample in batch.tolist()]
    assert len(set(seen)) == len(seen)
    assert max(data.reads) == 1
    assert all(data.reads[sample] for sample in seen)


@pytest.mark.processes
def test_loading_processes_end_with_a_cyclic_loader():
    """As one is that a trainer holds, which its own callbacks hold."""
    fork = multiprocessing.get_context("fork")
    loader = BalancedLoader(range(40), 8, rank=0, world_size=1, num_workers=2, multiprocessing_context=fork)
    next(iter(loader))
    loader.trainer = [loader]
    ours = multiprocessing.active_children()
    del loader
    began = time.monotonic()
    gc.collect()
    assert ours
    assert not set(ours) & set(multiprocessing.active_children())
    assert time.monotonic() - began < 4, "torch waits five seconds for each process that it does not reach"
