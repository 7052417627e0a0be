"""A loader that packs: global batches as without it, every sample once, caps kept, gradients of one process."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import outcomes_of, run_ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, Costs, Flatten, LoopError, attach

WORDS = 32


def texts(count, seed=0):
    chance = torch.Generator().manual_seed(seed)
    lengths = (torch.rand(count, generator=chance) ** 3 * 90 + 2).long().tolist()
    return [torch.randint(WORDS, (length,), generator=chance) for length in lengths]


def fleet(samples, ranks, pack, **options):
    lengths = [len(one) for one in samples]
    costs = Costs(lengths=lengths, cap=options.pop("cap", 128), padded=options.get("collate_fn") is padded)
    return [
        BalancedLoader(samples, costs=costs, pack=pack, rank=rank, world_size=ranks, **options) for rank in range(ranks)
    ]


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)


def steps_of(loader):
    """Yield the micro-batches of each step."""
    parts = []
    for batch in loader:
        parts.append(batch)
        if loader.step_ends:
            yield parts
            parts = []
    assert not parts


def change_shares(loaders, seed):
    """Set shares, alike on every rank; fewer of them are left for some ranks than one sample may need."""
    size, ranks = loaders[0].global_batch, loaders[0].world_size
    chance = np.random.default_rng(seed)
    shares = 1 + chance.multinomial(size - ranks, chance.dirichlet(np.full(ranks, 0.3)))
    coefficients = chance.dirichlet(np.ones(3))
    for loader in loaders:
        loader.shares, loader.coefficients = shares, coefficients


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    count=st.integers(4, 70),
    ranks=st.integers(1, 4),
    pack=st.sampled_from([True, "lockstep"]),
    collate=st.sampled_from([list, padded]),
    seed=st.integers(0, 3),
)
def test_every_sample_comes_once_under_the_cap(count, ranks, pack, collate, seed):
    samples = texts(count, seed)
    if pack == "lockstep":  # a function that pads cannot pad nothing
        collate = list
    loaders = fleet(samples, ranks, pack, global_batch=16, seed=seed, collate_fn=collate)
    seen = []
    steps = [steps_of(loader) for loader in loaders]
    while True:
        change_shares(loaders, seed)
        step = [next(one, None) for one in steps]
        if step[0] is None:
            assert step == [None] * ranks
            break
        assert all(sum(map(len, parts)) for parts in step)  # no rank goes without
        assert len({loader.position for loader in loaders}) == 1
        assert loaders[0].batch_sizes.sum() == sum(len(batch) for parts in step for batch in parts)
        if pack == "lockstep":
            assert len({len(parts) for parts in step}) == 1
        for batch in (batch for parts in step for batch in parts):
            if isinstance(batch, torch.Tensor):
                assert batch.numel() <= 128
            else:
                assert sum(map(len, batch)) <= 128
            assert pack == "lockstep" or len(batch)
            seen += [tuple(one[one >= 0].tolist()) for one in batch]
    assert sorted(seen) == sorted(tuple(one.tolist()) for one in samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_global_batches_are_those_of_plain_training(workers):
    samples = texts(60)
    loaders = fleet(samples, 2, True, global_batch=16, seed=3, collate_fn=list, num_workers=workers)
    one = BalancedLoader(samples, 16, rank=0, world_size=1, seed=3, collate_fn=list)
    steps = zip(*map(steps_of, loaders), one, strict=True)
    for *parts, drawn in steps:
        packed = [tuple(text.tolist()) for batches in parts for batch in batches for text in batch]
        assert sorted(packed) == sorted(tuple(text.tolist()) for text in drawn)


@pytest.mark.parametrize("ranks", [1, 3])
def test_epoch_resumes_with_other_ranks(ranks):
    samples = texts(60)
    first, second = fleet(samples, 2, True, global_batch=16), fleet(samples, ranks, "lockstep", global_batch=16)
    seen = []
    for _, *parts in zip(range(2), *map(steps_of, first), strict=False):
        seen += [token for batches in parts for batch in batches for token in batch["input_ids"][0].tolist()]
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    rest = [batch for loader in second for batch in loader]
    seen += [token for batch in rest if len(batch["labels"][0]) > 1 for token in batch["input_ids"][0].tolist()]
    assert sorted(seen) == sorted(token for text in samples for token in text.tolist())


def test_faster_ranks_get_more_tokens():
    samples = texts(400)
    loaders = fleet(samples, 2, True, global_batch=80)
    for loader in loaders:
        loader.shares = np.array([60, 20])
    tokens = [sum(batch["input_ids"].numel() for batch in loader) for loader in loaders]
    assert tokens[0] / sum(tokens) == pytest.approx(0.75, abs=0.02)


# -- gradients -----------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """A causal mean of what came before in the same sample, over packed rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.next = torch.nn.Embedding(WORDS, 8), torch.nn.Linear(8, WORDS)

    def forward(self, input_ids, position_ids):
        begins = (position_ids[0] == 0).cumsum(0)
        same = (begins[:, None] == begins[None]).tril().double()
        return self.next((same / same.sum(1, keepdim=True)) @ self.tokens(input_ids[0]))


def mean_loss(model, batch):
    labels = batch["labels"][0]
    loss = cross_entropy(model(batch["input_ids"], batch["position_ids"]), labels, ignore_index=-100)
    return loss, (labels != -100).sum()


def train(loader, model, balance, optimizer, *, steps, accumulating=True):
    """Train for so many steps, with shares that change in each; return how many micro-batches each had."""
    counts, count = [], 0
    for batch in loader:
        count += 1
        if accumulating:
            with balance.accumulating():
                loss, terms = mean_loss(model, batch)
                balance.scale(loss, terms).backward()
        else:
            loss, terms = mean_loss(model, batch)
            balance.scale(loss, terms).backward()
        if not loader.step_ends:
            continue
        optimizer.step()
        optimizer.zero_grad()
        counts.append(count)
        count = 0
        loader.shares = np.array([[12, 4], [5, 11], [8, 8]][len(counts) % 3])
        if len(counts) == steps:
            break
    return counts


def one_process(samples, steps, seed=0):
    """Return the model that one process trains on the whole global batches."""
    model = Model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = BalancedLoader(samples, 16, rank=0, world_size=1, seed=seed, collate_fn=Flatten())
    done = 0
    while done < steps:
        for batch in loader:
            mean_loss(model, batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break
    return model


def difference(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((one - two).abs().max()) for one, two in pairs)


def packed_training(rank, pack, accumulating):
    samples = texts(70)
    costs = Costs(lengths=[len(text) for text in samples], cap=128)
    model = DistributedDataParallel(Model().double())
    loader = BalancedLoader(samples, 16, costs=costs, pack=pack)
    balance = attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    counts = train(loader, model, balance, optimizer, steps=4, accumulating=accumulating)
    return difference(model.module, one_process(samples, 4)), counts


@pytest.mark.parametrize(("pack", "accumulating"), [(True, True), ("lockstep", True), ("lockstep", False)])
def test_packed_training_is_that_of_one_process(pack, accumulating):
    (apart, counts), (other, others) = run_ranks(2, packed_training, pack, accumulating)
    assert max(apart, other) < 1e-12
    assert (counts == others) == (pack == "lockstep")


def sharded_training(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    samples = texts(70)
    costs = Costs(lengths=[len(text) for text in samples], cap=128)
    model = fully_shard(Model().double())
    with pytest.raises(TypeError, match='pass pack="lockstep" to the loader'):
        attach(model, BalancedLoader(samples, 16, costs=costs, pack=True))
    loader = BalancedLoader(samples, 16, costs=costs, pack="lockstep")
    balance = attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(loader, model, balance, optimizer, steps=4, accumulating=False)
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    pairs = zip(whole, one_process(samples, 4).parameters(), strict=True)
    return max(float((one - two).abs().max()) for one, two in pairs)


def test_sharded_model_trains_with_equal_counts():
    assert max(run_ranks(2, sharded_training)) < 1e-12


def resumed_training(rank):
    """Train for two steps, and two more after a resume in the middle of the epoch, in new objects."""
    samples = texts(70)
    costs = Costs(lengths=[len(text) for text in samples], cap=128)
    state, weights = None, Model().double().state_dict()
    for _ in range(2):
        model = DistributedDataParallel(Model().double())
        model.module.load_state_dict(weights)
        loader = BalancedLoader(samples, 16, costs=costs, pack=True)
        balance = attach(model, loader)
        if state:
            balance.load_state_dict(state)
        train(loader, model, balance, torch.optim.SGD(model.parameters(), lr=0.5), steps=2)
        state, weights = balance.state_dict(), {name: one.clone() for name, one in model.module.state_dict().items()}
        balance.close()
    return difference(model.module, one_process(samples, 4)), int(loader.position[1])


def test_resume_in_the_middle_of_an_epoch():
    assert [(apart < 1e-12, batches) for apart, batches in run_ranks(2, resumed_training)] == [(True, 4)] * 2


def packed_job(count, global_batch, *, cap):
    """A packed loader of so many texts, and a model attached to it."""
    samples = texts(count)
    costs = Costs(lengths=[len(text) for text in samples], cap=cap)
    loader = BalancedLoader(samples, global_batch, costs=costs, pack=True)
    model = DistributedDataParallel(Model().double())
    return loader, model, attach(model, loader)


def unscaled(rank):
    loader, model, balance = packed_job(70, 16, cap=128)
    for batch in loader:
        with balance.accumulating():
            mean_loss(model, batch)[0].backward()


def test_losses_that_are_not_scaled_are_refused():
    for outcome in outcomes_of(2, unscaled):
        assert LoopError.__name__ in outcome.error
        assert "write loss = balance.scale(loss, count)" in outcome.error


def slow_rank(rank):
    """Train while the second rank takes three times as long; return the shares at the end."""
    import time

    loader, model, balance = packed_job(600, 32, cap=256)
    for batch in loader:
        with balance.accumulating():
            loss, terms = mean_loss(model, batch)
            time.sleep((1e-3 + 4e-5 * batch["input_ids"].numel()) * (3 if rank else 1))
            balance.scale(loss, terms).backward()
    dist.barrier()
    return loader.shares.tolist()


def test_slow_rank_gets_less():
    shares, _ = run_ranks(2, slow_rank)
    assert 18 <= shares[0] <= 27  # of 32: three quarters, less what the real computing adds on both


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"costs": None}, "costs=Costs"),
        ({"costs": Costs(lengths=[3, 4, 5])}, "cap=8192"),
        ({"micro_batch": 2}, "leave out micro_batch="),
        ({"accumulate": 2}, "leave out micro_batch= and accumulate="),
        ({"pack": 4}, 'pack must be True, "lockstep" or False, got 4'),
        ({"costs": Costs(lengths=[3, 4, 5], cap=8, padded=True)}, "needs a collate_fn="),
    ],
)
def test_options_that_cannot_pack_are_refused(options, sentence):
    known = {"costs": Costs(lengths=[3, 4, 5], cap=8), "pack": True, **options}
    with pytest.raises(ValueError, match=sentence):
        BalancedLoader([[1] * 3, [1] * 4, [1] * 5], 2, rank=0, world_size=1, **known)


@pytest.mark.parametrize("sample", [{"text": "a"}, torch.zeros(2, 3), "words", {"input_ids": [1, 2], "labels": [1]}])
def test_samples_without_tokens_are_refused(sample):
    with pytest.raises(TypeError, match="pass collate_fn="):
        Flatten()([sample])


# -- the collate function -------------------------------------------------------------------------------------------


def test_flatten_is_the_collator_of_transformers():
    pytest.importorskip("transformers")
    from transformers import DataCollatorWithFlattening

    samples = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}, {"input_ids": [1]}]
    samples = [{"labels": one["input_ids"], **one} for one in samples]
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True)([dict(one) for one in samples])
    ours = Flatten(cu_seqlens=True)(samples)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(value)), name


def test_flatten_makes_one_token_of_no_samples():
    batch = Flatten(cu_seqlens=True)([])
    assert batch["labels"].tolist() == [[-100]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 1]
