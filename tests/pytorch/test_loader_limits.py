"""Limits of what a loader takes: datasets, numbers of samples, states of other loaders, and what its names say."""

import pytest
from torch.utils.data import DataLoader, IterableDataset

from paceline.torch import BalancedLoader, Costs


def made(dataset=range(12), global_batch=6, rank=0, world_size=2, **options):
    return BalancedLoader(dataset, global_batch, rank=rank, world_size=world_size, **options)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(40)

    def __len__(self):
        return 40


@pytest.mark.parametrize(
    ("dataset", "error", "said"),
    [
        (iter(range(9)), TypeError, "dataset must be map-style, with __len__ and __getitem__, got range_iterator: "),
        ({1, 2}, TypeError, "dataset must be map-style"),
        (Stream(), TypeError, "dataset must be map-style.*got Stream: samples are assigned"),
        (DataLoader(range(9)), TypeError, "dataset must be a dataset, got a DataLoader: pass its"),
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


def test_epoch_without_full_batch_is_empty():
    loader = made(range(10), 8, world_size=1, costs=Costs(cost=[2.0] * 10, cap=20), sampler=[1, 2, 3], drop_last=True)
    assert list(loader) == []
    capped = made(range(4), 2, world_size=1, costs=Costs(cost=[2.0, 2.0, 2.0, 3.0], cap=4), shuffle=False)
    with pytest.raises(
        ValueError, match="global batch 1 of this epoch holds 5 tokens, more than 1 ranks may take under"
    ):
        next(iter(capped))
    assert len(list(made(range(4), 2, world_size=1, costs=Costs(cost=[2.0] * 4, cap=4)))) == 2
