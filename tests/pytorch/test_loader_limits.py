"""Limits of what a loader takes: datasets, numbers of samples, states of other loaders, and what its names say."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from paceline.torch import BalancedLoader, Costs
from paceline.torch.buffered import BufferAssigner
from paceline.torch.cost_column import numbers_of
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.order import Order
from paceline.torch.sliced import SliceAssigner


def made(dataset=range(12), global_batch=6, rank=0, world_size=2, **options):
    return BalancedLoader(dataset, global_batch, rank=rank, world_size=world_size, **options)


@pytest.mark.parametrize(
    ("dataset", "error", "said"),
    [
        (iter(range(9)), TypeError, "dataset must be map-style, with __len__ and __getitem__, got range_iterator: "),
        ({1, 2}, TypeError, "dataset must be map-style"),
        (DataLoader(range(9)), TypeError, "dataset must be what a DataLoader loads, got the DataLoader: give its data"),
        ([], ValueError, "0 samples are too few for 2 ranks, as each needs at least one: use fewer ranks"),
        ([5], ValueError, "1 samples are too few for 2 ranks"),
    ],
)
def test_dataset_refused_before_its_costs(dataset, error, said):
    def asked(sample):
        pytest.fail("asked")

    for costs in (None, Costs(cost=asked), Costs(lengths=asked, global_tokens=5)):
        with pytest.raises(error, match=said):
            made(dataset, None if costs is not None and costs.global_tokens else 6, costs=costs)


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
