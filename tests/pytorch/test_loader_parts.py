"""Parts of a loader against slow definitions: rows of chunks, the course of epochs, what a balance sets, budgets."""

import math
from collections import OrderedDict, UserDict, defaultdict
from functools import partial
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import BalancedLoader, Costs
from paceline.torch import costs as costs_made
from paceline.torch.costs import SampleCosts
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.rank_loader import RankLoader
from paceline.torch.rows import cut, joined


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, partial(defaultdict, list), MappingProxyType])
def test_mapping_rows_keep_their_kind(kind):
    batch = kind({"x": torch.arange(4), "y": ["a", "b", "c", "d"]})
    if isinstance(batch, UserDict):
        batch.note = "held"
    found = cut(batch, slice(1, 3))
    both = joined([found, cut(batch, slice(3, 4))])
    for one, rows in ((found, [1, 2]), (both, [1, 2, 3]), (batch, [0, 1, 2, 3])):
        assert type(one) is type(batch)
        assert (one["x"].tolist(), one["y"]) == (rows, ["abcd"[row] for row in rows])
        assert getattr(one, "note", None) == getattr(batch, "note", None)
        assert getattr(one, "default_factory", None) is getattr(batch, "default_factory", None)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8), st.integers(1, 3))
def test_loader_asks_for_sizes_between_steps(sizes, accumulate):
    rule = GlobalBatch(4, 2)
    batches, asked, order = iter(sizes), [], []

    def following(shares, number):
        assert (shares is loader.shares, number) == (True, accumulate)
        order.append("next")
        return RankBatch(np.array(next(batches))), "samples"

    def advance():
        order.append("advance")
        assigner.batches += 1

    assigner = SimpleNamespace(batches=0, over=False, coefficients=None, next=following, advance=advance)
    source = SimpleNamespace(take=lambda samples: order.append(samples) or "batch")
    loader = RankLoader(assigner, source, rule, 0)
    loader.accumulate, loader.before_batch = accumulate, lambda: asked.append(assigner.batches)
    since = math.inf
    for pair in sizes:
        ((facts, batch),) = loader.next_parts()
        since = since + 1 if pair[0] == pair[1] else 0
        assert (facts.sizes.tolist(), batch, loader.since_uneven) == (list(pair), "batch", since)
        assert loader.batch_sizes is facts.sizes
        assert order == ["next", "samples", "advance"], "a batch that could not be loaded has not been handed out"
        order.clear()
    assert asked == list(range(0, len(sizes), accumulate))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=9), st.floats(0.5, 60), st.integers(1, 3))
def test_token_budget_has_one_sample_per_rank(lengths, budget, ranks):
    costs = Costs(lengths=lengths, global_tokens=budget)
    loader = BalancedLoader(range(len(lengths)), rank=0, world_size=ranks, costs=costs)
    wanted = budget / (sum(lengths) / len(lengths))
    assert loader.global_batch >= ranks
    assert loader.global_batch == ranks or abs(loader.global_batch - wanted) <= 0.5 + 1e-9
    assert loader.global_batch >= wanted - 0.5 - 1e-9


@pytest.mark.parametrize(
    ("least", "samples", "lower"), [(1, 9, 1), (2, 9, 2), (2, 5, 1), (2, 6, 2), (4, 9, 3), (1, 2, 0)]
)
def test_drawn_samples_divided_by_costs(monkeypatch, least, samples, lower):
    asked = []
    monkeypatch.setattr(costs_made, "assign", lambda *of, **named: asked.append((of, named)) or "assignment")
    features_NF, tokens_N = np.arange(2.0 * samples).reshape(-1, 2), np.arange(float(samples))
    costs, shares_W = Costs(lengths=len, cap=99.0, padded=True), np.array([1, 2, 3])
    drawn = SampleCosts(features_NF, tokens_N)
    assert costs.divided(drawn, shares_W, np.array([0.25, 0.75]), least) == "assignment"
    (((cost_N, shares), named),) = asked
    np.testing.assert_allclose(cost_N, features_NF @ [0.25, 0.75])
    assert (shares is shares_W, named.pop("tokens") is tokens_N) == (True, True)
    assert named == {"cap": 99.0, "lower": lower, "padded": True, "steady": 0.05}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6), st.booleans())
def test_work_sums_features_or_pads(features, padded):
    own = SampleCosts(np.array(features, dtype=float), np.ones(len(features)))
    wanted = [max(column) * len(column) if padded else sum(column) for column in zip(*features, strict=True)]
    assert Costs(cost=len, padded=padded).work(own) == tuple(map(float, wanted))
    assert own.prior.tolist() == [1.0, 0.0]


def test_loader_adopts_place_of_another_rank():
    one, other = (BalancedLoader(range(12), 4, rank=rank, world_size=2) for rank in range(2))
    loops, begun = [iter(one), iter(other)], []
    other.shares = np.array([1, 3])
    for loop in (loops[0], loops[1], loops[1]):
        next(loop)
    one.on_start = lambda: begun.append(one.position)
    one.adopt(other.place())
    assert (begun, one.shares.tolist()) == ([other.position], [1, 3])
    assert [len(next(loop)) for loop in loops] == [1, 3]
