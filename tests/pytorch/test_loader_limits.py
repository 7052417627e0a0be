"""Limits of what a loader takes: datasets, numbers of samples, states of other loaders, and what its names say."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from paceline.torch import BalancedLoader, Costs, options, source
from paceline.torch.buffered import BufferAssigner
from paceline.torch.cost_column import numbers_of
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.micro import Collated, Pieces, borders
from paceline.torch.options import Loading, place, require_int, require_samples
from paceline.torch.order import Order
from paceline.torch.rows import cut, joined
from paceline.torch.sliced import SliceAssigner
from paceline.torch.source import OnDemand, Pinned


def exactly(sentence):
    return f"^{re.escape(sentence)}$"


def made(dataset=range(12), global_batch=6, rank=0, world_size=2, **options):
    return BalancedLoader(dataset, global_batch, rank=rank, world_size=world_size, **options)


@pytest.mark.parametrize(
    ("dataset", "error", "said"),
    [
        (iter(range(9)), TypeError, "dataset must be map-style, with __len__ and __getitem__, got range_iterator: "),
        ({1, 2}, TypeError, "dataset must be map-style"),
        (DataLoader(range(9)), TypeError, "dataset must be what a DataLoader loads, got the DataLoader: give its data"),
        ([], ValueError, "0 samples are too few for 2 ranks, as none may go without: give fewer ranks"),
        ([5], ValueError, "1 samples are too few for 2 ranks"),
    ],
)
def test_dataset_refused_before_its_costs(dataset, error, said):
    def asked(sample):
        pytest.fail("asked")

    for costs in (None, Costs(cost=asked), Costs(lengths=asked, global_tokens=5)):
        with pytest.raises(error, match=said):
            made(dataset, None if costs is not None and costs.global_tokens else 6, costs=costs)


def test_as_many_samples_as_ranks_suffice():
    require_samples([1, 2], 2, 2)
    with pytest.raises(
        ValueError, match="drop_last would leave out all 2 samples, which do not fill a global batch of 3"
    ):
        require_samples([1, 2], 2, 3)
    assert len(made(range(6), 6, drop_last=True)) == 1
    with pytest.raises(ValueError, match="2 samples are too few for 3 ranks"):
        require_samples([1, 2], 3, 1)


def test_numbers_below_their_minimum_refused(monkeypatch):
    assert [require_int("x", number, 3) for number in (3, np.int64(4))] == [3, 4]
    for number, said in ((2, "x must be at least 3, got 2"), (-1, "x must be at least 3, got -1")):
        with pytest.raises(ValueError, match=exactly(said)):
            require_int("x", number, 3)
    assert place(1, 2) == (1, 2)
    monkeypatch.setattr(options, "dist", SimpleNamespace(get_rank=lambda: 2, get_world_size=lambda: 4))
    assert [place(None, None), place(3, None), place(None, 3), place(0, None)] == [(2, 4), (3, 4), (2, 3), (0, 4)]


def test_options_of_loading_at_their_limits():
    assert Loading(0, timeout=0, prefetch_factor=1) == Loading(prefetch_factor=1)
    assert Loading(1, timeout=0.5, multiprocessing_context="fork").timeout == 0.5
    for told in ({"timeout": float("nan")}, {"timeout": -1e-9}):
        with pytest.raises(ValueError, match="timeout must be at least 0 seconds"):
            Loading(1, **told)


def test_fewest_samples_kept_under_costs():
    sizes = []
    for least in (1, 3):
        loader = made(range(8), 8, costs=Costs(cost=[1e3, 1, 1, 1, 1, 1, 1, 1]), shuffle=False)
        loader.min_samples = least
        next(iter(loader))
        assert loader.min_samples == least
        sizes.append(loader.batch_sizes.min())
    assert sizes == [1, 3]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_buffered_samples_come_first(ranks):
    order, ahead = Order(40, seed=3), BufferAssigner(Order(40, seed=3), GlobalBatch(6, 2), 0, ahead=2)
    ahead.start(0)
    ahead.next(np.array([4, 2]))
    seen = np.concatenate(ahead.take(np.array([4, 2]))).tolist()
    sliced = SliceAssigner(order, GlobalBatch(6, ranks), 0)
    sliced.load_state_dict(ahead.state_dict())
    held = np.concatenate(ahead.buffers).tolist()
    assert (sliced.numbers[: len(held)].tolist(), sliced.place, sliced.remaining) == (held, 0, 34)
    assert sorted(seen + sliced.numbers.tolist()) == list(range(40))
    again = SliceAssigner(order, GlobalBatch(6, ranks), 0)
    again.load_state_dict(sliced.state_dict())
    assert again.numbers.tolist() == sliced.numbers.tolist(), "an order that no seed gives is in the state"


def test_epoch_without_full_batch_is_empty():
    loader = made(range(10), 8, world_size=1, costs=Costs(cost=[2.0] * 10, cap=20), sampler=[1, 2, 3], drop_last=True)
    assert list(loader) == []
    capped = made(range(4), 2, world_size=1, costs=Costs(cost=[2.0, 2.0, 2.0, 3.0], cap=4), shuffle=False)
    with pytest.raises(
        ValueError, match="global batch 1 of this epoch holds 5 tokens, more than 1 ranks may take under"
    ):
        next(iter(capped))
    assert len(list(made(range(4), 2, world_size=1, costs=Costs(cost=[2.0] * 4, cap=4)))) == 2


class Table:
    """A dataset of one column, as Hugging Face has it."""

    column_names = ("x",)

    def __init__(self, values):
        import pyarrow as pa

        self.values = pa.chunked_array([values[:1], values[1:]])

    def __len__(self):
        return len(self.values)

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def select_columns(self, names):
        assert names == ["x"]
        return _Columns(self.values)


class _Columns:
    def __init__(self, values):
        self.values = values

    def __getitem__(self, rows):
        assert rows == slice(None)
        return {"x": self.values}


def test_column_counts_by_kind():
    assert numbers_of(Table([3, 1]), "x", "cost").tolist() == [3, 1]
    assert numbers_of(Table([True, True]), "x", "cost").tolist() == [1, 1]
    assert numbers_of(Table([[1, 2], [-100]]), "x", "lengths").tolist() == [2, 1]
    with pytest.raises(ValueError, match="cost must be finite and above 0, got nan for sample 1"):
        numbers_of(Table([1.0, None]), "x", "cost")
    with pytest.raises(TypeError, match="cost='y' names a column, which Table does not have"):
        numbers_of(Table([1, 2]), "y", "cost")


def test_samples_per_batch_are_read_only():
    given = np.array([1.0, 2.0])
    for found in (numbers_of([7, 8], given, "cost"), numbers_of([1.0, 2.0], float, "cost")):
        assert (found.tolist(), found.flags.writeable, found is given) == ([1.0, 2.0], False, False)
    assert given.flags.writeable


def test_rows_without_any_and_texts_of_bytes():
    assert cut([[], torch.arange(2)], slice(0, 1))[0] == []
    assert cut([b"a", b"b"], slice(1, 2)) == [b"b"]
    assert joined([(b"a",), (b"b", b"c")]) == (b"a", b"b", b"c")
    pairs = partial(borders, size=2)
    assert Pieces(sum, pairs)([1, 2, 3, 4]) == [3, 7]
    assert type(Pieces(sum, pairs)([1])) is Collated


def test_on_demand_samples_are_stacked(monkeypatch):
    assert OnDemand(None, None).take is default_collate
    assert OnDemand(None, sum).take is sum
    assert OnDemand("abc", "".join).take(np.array([2, 0])) == "ca"
    restarted = []
    monkeypatch.setattr(source, "pinned", lambda batch: ("pinned", batch))
    pins = Pinned(SimpleNamespace(take=lambda samples: samples, restart=lambda: restarted.append(1)))
    pins.restart()
    assert (pins.take("batch"), restarted) == (("pinned", "batch"), [1])
