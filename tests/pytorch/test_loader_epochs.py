"""A job that is stopped anywhere and resumed sees every sample of every epoch once, in the loops that scripts write."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import BalancedLoader, Costs, StreamLoader

EPOCHS, SAMPLES, GLOBAL_BATCH = 3, 23, 6


def loader_of(kind, rank, world_size):
    options = {"rank": rank, "world_size": world_size, "seed": 5, "collate_fn": list}
    if kind == "costs":
        options["costs"] = Costs(lengths=lambda sample: 1 + sample % 7)
    if kind.startswith("stream"):
        known = {"costs": Costs(cost=lambda sample: 1 + sample % 5)} if kind == "stream of costs" else {}
        return StreamLoader(range(SAMPLES), GLOBAL_BATCH, window=4, **options, **known)
    sampler = np.random.default_rng(1).permutation(SAMPLES).tolist() if kind == "sampler" else None
    return BalancedLoader(range(SAMPLES), GLOBAL_BATCH, sampler=sampler, **options)


def loops(loaders, said, first):
    """Loop as scripts do; yield the epoch with the samples of each global batch, and with None at each loop's end."""
    for epoch in range(first, EPOCHS) if said else range(EPOCHS):
        for loader in loaders if said else []:
            loader.set_epoch(epoch)
        for parts in zip(*loaders, strict=True):
            assert len({loader.position for loader in loaders}) == 1
            yield loaders[0].epoch, [sample for part in parts for sample in part]
        yield epoch if said else loaders[0].epoch, None


KINDS = ["plain", "costs", "sampler", "stream", "stream of costs"]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    kind=st.sampled_from(KINDS),
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=4),
    said=st.booleans(),
    late=st.booleans(),
)
def test_any_resume_yields_every_sample_once(kind, jobs, said, late):
    """With ``set_epoch``, as in ``for epoch in range(saved_epoch, epochs)``, and without; saved after any batch.

    Each job but the last stops after so many batches, and is resumed on so many ranks. At an epoch's end it may stop
    before or after the loop has ended.
    """
    seen, state, epoch = {epoch: [] for epoch in range(EPOCHS)}, None, 0
    for number, (world_size, stop) in enumerate(jobs):
        if 0 < SAMPLES - len(seen[epoch]) < world_size:
            world_size = 1  # too few samples for so many ranks are refused
        loaders = [loader_of(kind, rank, world_size) for rank in range(world_size)]
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        first = epoch
        for epoch, batch in loops(loaders, said, first):
            seen[epoch] += batch or []
            stop -= batch is not None
            done = len(seen[epoch]) == SAMPLES
            if (done and epoch == EPOCHS - 1) or (
                number < len(jobs) - 1 and stop <= 0 and (not (late and done) or not batch)
            ):
                break
        state = loaders[-1].state_dict()
        if len(seen[EPOCHS - 1]) == SAMPLES and not said:
            break
    for samples in seen.values():
        assert sorted(samples) == list(range(SAMPLES))


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_resume_yields_what_was_loaded_ahead(world_size):
    """Loading processes draw samples for each of two ranks in advance; others are resumed with these."""
    seen, state = [], None
    for ranks, stop in ((2, 3), (world_size, -1)):
        loaders = [
            BalancedLoader(range(60), 6, rank=rank, world_size=ranks, num_workers=1, collate_fn=list)
            for rank in range(ranks)
        ]
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        for parts in zip(*loaders, strict=True):
            seen += [sample for part in parts for sample in part]
            stop -= 1
            if stop == 0:
                break
        state = loaders[0].state_dict()
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("kind", KINDS)
def test_finished_epoch_set_again_is_empty_once(kind):
    first, resumed = loader_of(kind, 0, 1), loader_of(kind, 0, 1)
    for _ in range(len(list(first))):
        pass
    resumed.load_state_dict(first.state_dict())
    next(iter(resumed))
    for length in (0, SAMPLES):
        resumed.set_epoch(0)
        assert sum(len(batch) for batch in resumed) == length
    resumed.load_state_dict(first.state_dict())
    assert (sum(len(batch) for batch in resumed), resumed.epoch) == (SAMPLES, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_rest_stays_skipped(kind):
    first, resumed = loader_of(kind, 0, 1), loader_of(kind, 0, 1)
    next(iter(first))
    with pytest.warns(UserWarning, match="samples of epoch 0, as requested by skip_rest=True"):
        resumed.load_state_dict(first.state_dict(), skip_rest=True)
    resumed.set_epoch(0)
    assert list(resumed) == []
    assert sum(len(batch) for batch in resumed) == SAMPLES
