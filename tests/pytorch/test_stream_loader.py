"""Streams are divided like datasets: every sample once, alike on all ranks, and what differs between them shows."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import Costs, StreamLoader


def fleet(stream, world_size, global_batch, **options):
    options = {"collate_fn": list, **options}
    return [
        StreamLoader(stream, global_batch, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def union(loaders):
    """Yield the samples of each global batch."""
    for parts in zip(*loaders, strict=True):
        assert all(parts)
        assert len({loader.position for loader in loaders}) == 1
        yield [sample for part in parts for sample in part]


def change_shares(loaders, seed):
    for loader in loaders:

        def change(loader=loader, rng=np.random.default_rng(seed)):  # noqa: B008
            size, ranks = loader.global_batch, loader.world_size
            loader.shares = 1 + rng.multinomial(size - ranks, rng.dirichlet(np.ones(ranks)))
            loader.coefficients = rng.dirichlet(np.ones(len(loader.coefficients)))

        loader.before_batch = change


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    samples=st.integers(4, 90),
    world_size=st.integers(1, 4),
    per_rank=st.integers(1, 7),
    window=st.integers(1, 30),
    learned=st.booleans(),
    stop=st.integers(0, 4),
)
def test_stream_yields_every_sample_once(samples, world_size, per_rank, window, learned, stop):
    options = {"costs": Costs(**{"lengths" if learned else "cost": lambda sample: 1 + sample % 7}), "window": window}
    loaders = fleet(range(samples), world_size, world_size * per_rank, **options)
    change_shares(loaders, stop)
    seen = [sample for batch in union(loaders) for sample in batch]
    assert sorted(seen) == list(range(samples))
    begun = [batch for _, batch in zip(range(stop), union(loaders), strict=False)]
    later = fleet(range(samples), world_size, world_size * per_rank, **options)
    for loader, saved in zip(later, loaders, strict=True):
        loader.load_state_dict(saved.state_dict())
    rest = list(union(later))
    together = [sample for batch in [*begun, *rest] for sample in batch]
    if len(begun) > 0 and len(together) == samples:
        assert sorted(together) == list(range(samples))
    else:  # nothing was under way: the next epoch comes
        assert sorted(sample for batch in rest for sample in batch) == list(range(samples))


def test_a_window_mixes_and_every_epoch_in_another_way():
    (loader,) = fleet(range(100), 1, 10, window=10)
    first, second = ([sample for batch in loader for sample in batch] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert len({tuple(first), tuple(second), tuple(range(100))}) == 3
    assert all(number - place <= 10 for place, number in enumerate(first))


def test_rank_streams_differ_in_position():
    costs, streams = Costs(cost=lambda sample: 1 + sample), [range(8), range(1, 9)]
    loaders = [
        StreamLoader(stream, 4, rank=rank, world_size=2, costs=costs, collate_fn=list)
        for rank, stream in enumerate(streams)
    ]
    for loader in loaders:
        next(iter(loader))
    assert loaders[0].position != loaders[1].position


def test_invalid_stream_options_refused():
    with pytest.raises(
        TypeError, match="lengths must be a function of a sample, as samples of a stream have no index, got list"
    ):
        fleet([1, 2], 2, 2, costs=Costs(lengths=[1, 2]))
    with pytest.raises(ValueError, match="global_tokens does not work with a stream: leave it out"):
        fleet([1, 2], 2, 2, costs=Costs(lengths=len, global_tokens=5))


@pytest.mark.parametrize(
    ("stream", "options", "says"),
    [
        ([1, 2, 0], {"costs": Costs(cost=float)}, "cost must be finite and above 0, got 0 for sample 2 of the stream"),
        ([1], {}, "the stream has 1 samples, too few for 2 ranks"),
        (
            [1, 9, 1],
            {"costs": Costs(cost=float, cap=5)},
            "sample 1 of the stream takes 9 tokens, more than the cap of 5",
        ),
    ],
)
def test_indivisible_stream_sample_named(stream, options, says):
    loop = iter(fleet(stream, 2, 3, **options)[0])
    with pytest.raises(ValueError, match=says):
        next(loop)


def test_stream_loop_ends_when_another_begins():
    (loader,) = fleet(range(20), 1, 4)
    older = iter(loader)
    seen = next(older)
    state = loader.state_dict()
    for disturb in (lambda: loader.load_state_dict(state), lambda: (loader.set_epoch(0), next(iter(loader)))):
        disturb()
        with pytest.raises(RuntimeError, match="this loop over the loader has ended"):
            next(older)
        older = iter(loader)
        loader.set_epoch(0)
        next(older)
    loader.load_state_dict(state)
    assert sorted(seen + [sample for batch in loader for sample in batch]) == list(range(20))


def test_a_plain_stream_has_sizes_and_no_costs():
    first, second = fleet(range(20), 2, 5)
    first.sizes = second.sizes = np.array([3, 2])
    assert (next(iter(first)), next(iter(second)), first.coefficients) == ([0, 1, 2], [3, 4], None)


def split(rank):
    return range(rank, 480, 2)


def shuffled(rank):
    return np.random.default_rng(rank).permutation(480).tolist()


def uneven(rank):
    return range(*((0, 300), (300, 480))[rank])


FORMS = [lambda k: k, lambda k: {"x": np.full(4, k)}, lambda k: (f"{k}", [k, None]), lambda k: np.r_[np.zeros(999), k]]


@pytest.mark.parametrize("made", [split, shuffled, uneven])
@pytest.mark.parametrize("form", FORMS)
def test_other_streams_have_other_positions(made, form):
    """Streams as scripts of plain DDP divide them: as many samples a batch, but others."""
    first, second = (
        StreamLoader([form(k) for k in made(rank)], 24, rank=rank, world_size=2, collate_fn=list) for rank in (0, 1)
    )
    for loader in (first, second):
        next(iter(loader))
    assert first.position != second.position


def test_stream_key_is_what_a_sample_is_known_by():
    """A stream that augments at random: the numbers are the same on every rank, the pixels are not."""
    loaders = [
        StreamLoader(
            [{"id": k, "x": np.random.default_rng(k + 1000 * rank).random(4)} for k in range(48)],
            24,
            rank=rank,
            world_size=2,
            collate_fn=list,
            key=lambda sample: sample["id"],
        )
        for rank in (0, 1)
    ]
    assert sum(1 for _ in union(loaders)) == 2


# -- what it refuses, and says of itself ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("seed", -1), ("global_batch", 1)])
def test_a_stream_refuses_what_is_below_its_least(name, value):
    given = {"global_batch": 2, "rank": 0, "world_size": 2}
    least = {"window": "1 sample", "seed": "0", "global_batch": "2 samples, one for each rank"}[name]
    with pytest.raises(ValueError, match="^" + re.escape(f"{name} must be at least {least}, got {value}")):
        StreamLoader(range(9), **{**given, name: value})
    loader = StreamLoader(range(9), **given)
    assert loader.settings() == {"global_batch": 2, "world_size": 2, "window": 1, "seed": 0}


def test_stream_has_a_coefficient_per_feature():
    def made(**costs):
        return StreamLoader(range(9), 2, rank=0, world_size=2, costs=Costs(**costs), seed=2, window=3)

    both = made(lengths=float, cost=float, cap=9.0, padded=True)
    assert both.settings() == {
        "global_batch": 2,
        "world_size": 2,
        "window": 3,
        "seed": 2,
        "cap": 9.0,
        "global_tokens": None,
        "padded": True,
        "numbers of a sample": ["cost", "lengths"],
    }
    assert both.coefficients.tolist() == [1.0]
    assert made(lengths=float).coefficients.tolist() == [1.0, 0.0, 0.0]
    state = made(lengths=float).state_dict()
    with pytest.raises(ValueError, match="saved with seed=2, but this loader has 0"):
        StreamLoader(range(9), 2, rank=0, world_size=2, window=3).load_state_dict(state)
