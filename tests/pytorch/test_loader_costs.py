"""A loader that divides by cost: global batches as without it, every sample once, alike on all ranks. Axis: W ranks."""

import dataclasses
from importlib.metadata import PackageNotFoundError, version
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks, run_script
from torch.utils.data import TensorDataset

from paceline.torch import BalancedLoader, Costs


def _installed(name):
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def lengths_of(samples, seed=0):
    return np.ceil(20 * np.random.default_rng(seed).lognormal(0, 0.8, samples))


def with_costs(options):
    """Return a loader's options with all that is said of costs in one object."""
    names = {field.name for field in dataclasses.fields(Costs)}
    said = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    return {**rest, "costs": Costs(**said)} if said else rest


def fleet(dataset, world_size, **options):
    options = with_costs(options)
    return [BalancedLoader(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def change_shares(loaders, seed):
    """Let shares and coefficients change before every batch, alike on every rank."""
    for loader in loaders:

        def change(known=ref(loader), rng=np.random.default_rng(seed)):  # noqa: B008
            self = known()
            size, ranks = self.global_batch, self.world_size
            self.shares = 1 + rng.multinomial(size - ranks, rng.dirichlet(np.ones(ranks)))
            self.coefficients = rng.dirichlet(np.ones(len(self.coefficients)))

        loader.before_batch = change


def union(parts):
    return [sample for part in parts for sample in part]


def batches_of(loaders):
    """Yield each global batch as the lists of its ranks."""
    for batches in zip(*loaders, strict=True):
        yield [[int(sample) for sample in batch] for batch in batches]


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    samples=st.integers(6, 120),
    world_size=st.integers(1, 4),
    per_rank=st.integers(1, 9),
    learned=st.booleans(),
    padded=st.booleans(),
    capped=st.booleans(),
    seed=st.integers(0, 3),
)
def test_costs_keep_samples_and_global_batches(samples, world_size, per_rank, learned, padded, capped, seed):
    lengths, size = lengths_of(samples, seed), world_size * per_rank
    options = {"lengths" if learned else "cost": lengths, "padded": padded}
    if capped:  # roomy: whether a tight cap can be kept depends on the draw, and is refused where it cannot
        options["cap"] = lengths.max() * (per_rank + 2 * world_size + 2)
    plain = fleet(range(samples), world_size, global_batch=size, seed=seed)
    divided = fleet(range(samples), world_size, global_batch=size, seed=seed, **options)
    change_shares(divided, seed)
    for _ in range(2):
        seen = []
        for drawn, parts in zip(batches_of(plain), batches_of(divided), strict=True):
            assert sorted(union(drawn)) == sorted(union(parts))
            assert all(parts)
            assert divided[0].batch_sizes.tolist() == [len(part) for part in parts]
            seen += union(parts)
            for part in parts:
                tokens = lengths[part].max() * len(part) if padded else lengths[part].sum()
                assert tokens <= options.get("cap", np.inf)
        assert sorted(seen) == list(range(samples))
        assert len({loader.position for loader in divided}) == 1


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("num_workers", [(1, 2), (2, 2)])
def test_loading_processes_change_nothing(num_workers, collate):
    data = TensorDataset(torch.arange(90), torch.arange(90.0) * 2)
    options = {"global_batch": 12, "costs": Costs(lengths=lengths_of(90)), "seed": 4}
    here = fleet(data, 2, **options)
    ahead = [
        BalancedLoader(data, rank=rank, world_size=2, num_workers=count, collate_fn=collate, **options)
        for rank, count in enumerate(num_workers)
    ]
    change_shares(here, 7)
    change_shares(ahead, 7)
    for _ in range(2):
        for (one, other), (first, second) in zip(zip(*here, strict=True), zip(*ahead, strict=True), strict=True):
            for wanted, batch in ((one, first), (other, second)):
                if collate:
                    batch = [torch.stack(column) for column in zip(*batch, strict=True)]
                assert torch.equal(batch[0], wanted[0])
                assert torch.equal(batch[1], wanted[0] * 2.0)


@pytest.mark.slow
def test_ranks_end_together_by_cost_and_shares():
    lengths = lengths_of(640)
    loaders = fleet(range(640), 2, global_batch=64, cost=lengths)
    for loader in loaders:
        loader.shares = np.array([48, 16])
    for parts in batches_of(loaders):
        work = [lengths[part].sum() for part in parts]
        assert work[0] / (work[0] + work[1]) == pytest.approx(0.75, abs=0.01)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stop=st.integers(0, 5),
    seed=st.integers(0, 3),
    tokens=st.booleans(),
)
def test_epoch_resumes_on_any_number_of_ranks(ranks, stop, seed, tokens):
    lengths = lengths_of(70, seed)
    size = {"global_tokens": 300.0} if tokens else {"global_batch": 12}
    options = {"lengths": lengths, "seed": seed, **size}
    first = fleet(range(70), ranks[0], **options)
    change_shares(first, seed)
    seen = []
    for _, parts in zip(range(stop), batches_of(first), strict=False):
        seen += union(parts)
    states = [loader.state_dict() for loader in first]
    second = fleet(range(70), ranks[1], **options)
    for loader in second:
        loader.load_state_dict(states[0])
    if stop == 0:
        seen = []
    for parts in batches_of(second):
        seen += union(parts)
    assert sorted(seen) == list(range(70))
    if ranks[0] == ranks[1]:
        assert second[0].coefficients.tolist() == first[0].coefficients.tolist()


@pytest.mark.processes
def test_epoch_loaded_ahead_takes_costs():
    plain = fleet(range(50), 2, global_batch=10, num_workers=1)
    loops = [iter(loader) for loader in plain]
    seen = [int(sample) for loop in loops for sample in next(loop)]
    (later,) = fleet(range(50), 1, global_batch=10, cost=lengths_of(50))
    later.load_state_dict(plain[0].state_dict())
    assert sorted(seen + [int(sample) for batch in later for sample in batch]) == list(range(50))


@pytest.mark.slow
def test_token_budget_fills_global_batches():
    lengths = lengths_of(300)
    loaders = fleet(range(300), 2, lengths=lengths, global_tokens=500)
    for epoch in range(2):
        count = len(loaders[0])
        tokens = [lengths[union(parts)].sum() for parts in batches_of(loaders)]
        assert len(tokens) == count, epoch
        assert max(tokens) <= 500
        assert np.mean(tokens[:-1]) > 500 - 2 * lengths.mean()


# Run apart: from a checkout, the folder of this library's own datasets is found in place of the package.
COLUMNS = """
import os
os.environ["HF_HOME"] = os.getcwd()
import datasets
from paceline.torch.costs import read_numbers
from paceline.torch.setup_checks import dataset_checksum

class Unread(datasets.Dataset):
    def __getitem__(self, key):
        assert not isinstance(key, int), "a row was read"
        return super().__getitem__(key)

tokens = [[1] * length for length in (3, 1, 4, 1, 5, 9)]
labels = [[-100, 7, 7], [-100], [7] * 4, [7], [-100] * 5, [7] * 8 + [-100]]
data = datasets.Dataset.from_dict({"input_ids": tokens, "labels": labels, "length": [3, 1, 4, 1, 5, 9]})
data = data.select([5, 4, 3, 2, 1, 0])
data.__class__ = Unread
for column in ("input_ids", "length"):
    assert read_numbers(data, column, "lengths").tolist() == [9, 5, 1, 4, 1, 3]

data.__class__ = datasets.Dataset
first, second = (data.shard(2, index) for index in (0, 1))
assert dataset_checksum(data) == dataset_checksum(data.with_transform(lambda rows: 1 / 0)) == dataset_checksum(first)
assert dataset_checksum(first) != dataset_checksum(second)
"""


@pytest.mark.skipif(not _installed("datasets"), reason="needs Hugging Face's datasets")
def test_hugging_face_column_read_without_rows(tmp_path):
    script = tmp_path / "columns.py"
    script.write_text(COLUMNS)
    run_script(1, script, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cost": [1.0] * 9}, r"cost must hold one number for each of the 10 samples, got the shape \(9,\)"),
        ({"cost": [1.0] * 9 + [np.nan]}, "cost must be finite and above 0, got nan for sample 9"),
        ({"cost": [1.0, 0.0] * 5}, "cost must be finite and above 0, got 0 for sample 1"),
        ({"lengths": [1.0, -2.0] * 5}, "lengths must be finite and above 0, got -2 for sample 1"),
        ({"cost": [1.0, 9.0] * 5, "cap": 8}, "sample 1 takes 9 tokens, more than the cap of 8: leave it out"),
        ({"cost": [4.0] * 10, "cap": 5}, "global batch 0 of this epoch holds 16 tokens, more than 2 ranks may"),
        ({"cost": [1e-300] * 5 + [1e300] * 5}, "samples 0 and 5 are too unequal for floating point, 1e-300 and 1e"),
        ({"lengths": [1.0] * 9 + [1e200]}, "samples 0 and 9 are too unequal for floating point, 1 and 1e"),
        ({"lengths": [0.0] + [1.0] * 9}, "lengths must be finite and above 0, got 0 for sample 0"),
        ({"sampler": [3, 10]}, "the sampler yields 10, but the dataset has samples 0 to 9"),
        ({"sampler": [3]}, "the sampler yields 1 samples, too few for 2 ranks"),
        ({"sampler": [], "lengths": [1.0] * 10}, "the sampler yields 0 samples, too few for 2 ranks"),
        ({"cap": 8}, "Costs needs lengths= or cost="),
        ({"global_tokens": 8, "global_batch": None}, "Costs needs lengths= or cost="),
        ({"padded": False}, "Costs needs lengths= or cost="),
        ({"cost": [1.0] * 10, "cap": 0}, "cap must be above 0 tokens and finite, got 0"),
        ({"cost": [1.0] * 10, "global_tokens": 8}, "global_batch and global_tokens exclude each other"),
        (
            {"cost": [1.0] * 10, "global_tokens": 8, "global_batch": None, "drop_last": True},
            "drop_last does not work with global_tokens",
        ),
    ],
)
def test_indivisible_sample_is_named(options, says):
    def begin():
        (loader, _) = fleet(range(10), 2, **{"global_batch": 4, **options})
        next(iter(loader))

    with pytest.raises(ValueError, match=says):
        begin()


def test_column_of_plain_dataset_refused():
    with pytest.raises(TypeError, match="cost='length' names a column, which range does not have"):
        BalancedLoader(range(10), 4, rank=0, world_size=1, costs=Costs(cost="length"))


@pytest.mark.processes
@pytest.mark.parametrize("options", [{}, {"lengths": lengths_of(40)}, {"num_workers": 1}])
def test_own_sampler_decides_order_and_count(options):
    class Twice(torch.utils.data.Sampler):
        def set_epoch(self, epoch):
            self.order = np.random.default_rng(epoch).integers(0, 40, 30).tolist()

        def __iter__(self):
            return iter(self.order)

        def __len__(self):
            return 30

    loaders = fleet(range(40), 2, global_batch=8, sampler=Twice(), **options)
    for epoch in range(2):
        seen = [sample for parts in batches_of(loaders) for sample in union(parts)]
        assert sorted(seen) == sorted(np.random.default_rng(epoch).integers(0, 40, 30).tolist())
    assert len(loaders[0]) == 4
    loops = [iter(loader) for loader in loaders]
    seen = [int(sample) for loop in loops for sample in next(loop)]
    later = fleet(range(40), 2, global_batch=8, sampler=Twice(), **options)
    for loader, saved in zip(later, loaders, strict=True):
        loader.load_state_dict(saved.state_dict())
    seen += [sample for parts in batches_of(later) for sample in union(parts)]
    assert sorted(seen) == sorted(np.random.default_rng(2).integers(0, 40, 30).tolist())


def test_unrepeatable_sampler_order_in_state():
    class Once(torch.utils.data.Sampler):
        def __init__(self):
            self.random = np.random.default_rng(0)

        def __iter__(self):
            return iter(self.random.permutation(40).tolist())

        def __len__(self):
            return 40

    def loader():
        return BalancedLoader(range(40), 8, rank=0, world_size=1, sampler=Once())

    first, later = loader(), loader()
    list(later)  # its sampler has drawn on
    seen = next(iter(first)).tolist()
    later.load_state_dict(first.state_dict())
    assert sorted(seen + [sample for batch in later for sample in batch.tolist()]) == list(range(40))


def test_rank_samplers_differ_in_position():
    loaders = [
        BalancedLoader(range(9), 3, rank=rank, world_size=3, sampler=np.random.default_rng(rank).permutation(9))
        for rank in range(3)
    ]
    for loader in loaders:
        next(iter(loader))
    assert len({loader.position for loader in loaders}) == 3


# -- samples of several parts ----------------------------------------------------------------------------------------


def two_parts(rank):
    """Train where a token of an image costs a tenth of one of text; return what was learned of both, and the waits."""
    from torch.nn.parallel import DistributedDataParallel

    from paceline.torch import attach

    chance = np.random.default_rng(0)
    text, image = chance.integers(1, 40, 640), chance.integers(0, 4, 640) * 60
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    costs = Costs(lengths={"text": text, "image": image})
    loader = BalancedLoader(torch.arange(640.0)[:, None], 16, costs=costs)
    balance, tokens = attach(model, loader), []
    for rows in loader:
        own = rows[:, 0].long()
        tokens.append([float(text[own].sum()), float(image[own].sum())])
        loss = model(rows).square().mean() * 0.0
        balance.measured(0.01 + 2e-5 * float(10 * text[own].sum() + image[own].sum()))
        loss.backward()
    coefficients = balance.work.coefficients
    total, alone, squares = coefficients[0], coefficients[1:3], coefficients[3:5]
    mean = [(text + image).mean(), text.mean(), image.mean()]
    return total / mean[0] + alone[0] / mean[1], total / mean[0] + alone[1] / mean[2], float(squares.sum())


def test_parts_of_a_sample_are_learned_apart():
    text, image, squares = run_ranks(2, two_parts)[0]
    assert text / max(image, 1e-9) > 5
    assert squares < 0.25


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lengths": {}}, "lengths must have 1 to 3 parts, got 0"),
        ({"lengths": dict.fromkeys("abcd", len)}, "lengths must have 1 to 3 parts, got 4"),
        ({"lengths": {"a": len, "b": len}, "padded": True}, "padded=True needs lengths= of one part"),
    ],
)
def test_parts_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Costs(**options)


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ({"text": [1, 2, 0], "image": [0, 3, 0]}, "lengths must be finite and above 0, got 0 for sample 2"),
        ({"text": [1, 2, 3], "image": [0, 0, 0]}, "is 0 for every sample: leave that part out"),
        ({"text": [1, 2, 3], "image": [0, -1, 0]}, "must be finite and not negative, got -1 for sample 1"),
    ],
)
def test_lengths_of_parts_are_checked(lengths, sentence):
    with pytest.raises(ValueError, match=sentence):
        BalancedLoader(range(3), 2, rank=0, world_size=1, costs=Costs(lengths=lengths))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=9), st.floats(0.5, 60), st.integers(1, 3))
def test_token_budget_has_one_sample_per_rank(lengths, budget, ranks):
    costs = Costs(lengths=lengths, global_tokens=budget)
    loader = BalancedLoader(range(len(lengths)), rank=0, world_size=ranks, costs=costs)
    wanted = budget / (sum(lengths) / len(lengths))
    assert loader.global_batch >= ranks
    assert loader.global_batch == ranks or abs(loader.global_batch - wanted) <= 0.5 + 1e-9
    assert loader.global_batch >= wanted - 0.5 - 1e-9
