"""Parts of a loader against slow definitions: rows of chunks, the course of epochs, what a balance sets, budgets."""

import dataclasses
import inspect
import math
import warnings
from collections import OrderedDict, UserDict, defaultdict
from functools import partial
from itertools import pairwise
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import BalancedLoader, Costs
from paceline.torch import costs as costs_made
from paceline.torch.costs import SampleCosts
from paceline.torch.epoch_position import Progress
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.options import Loading
from paceline.torch.rank_loader import RankLoader
from paceline.torch.rows import cut, joined, runs


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=9))
def test_chunk_rows_cut_and_joined_in_order(places):
    chunks = [
        {"x": torch.arange(5) + 10 * k, "y": [[f"{k}{row}" for row in range(5)], torch.ones(5, 2)]} for k in range(3)
    ]
    found = runs([(chunks[chunk], row) for chunk, row in places])
    breaks = sum((chunk, row) != (before, last + 1) for (before, last), (chunk, row) in pairwise(places))
    assert len(found) == 1 + breaks
    batch = joined([cut(chunk, rows) for chunk, rows in found])
    assert batch["x"].tolist() == [10 * chunk + row for chunk, row in places]
    assert batch["y"][0] == [f"{chunk}{row}" for chunk, row in places]
    assert batch["y"][1].shape == (len(places), 2)


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


class Epochs:
    """An assigner of epochs of four batches, whose state is its place."""

    def __init__(self, knows=True):
        self.epoch = self.batches = 0
        self.over, self.knows = True, knows

    @property
    def remaining(self):
        return 4 - self.batches if self.knows else None

    def start(self, epoch):
        self.epoch, self.batches, self.over = epoch, 0, False

    def end(self):
        self.over = True

    def check(self, state, *, with_rest):
        self.checked = with_rest

    def load_state_dict(self, state):
        self.epoch, self.batches, self.over = int(state["epoch"]), int(state["batches"]), bool(state["over"])

    adopt = load_state_dict

    def state_dict(self):
        return {name: np.array(getattr(self, name)) for name in ("epoch", "batches", "over")}

    def take(self, batches):
        self.batches += batches
        self.over = self.batches == 4


def resumed(taken, *, sets=None, knows=True, **how):
    """Return a place saved in epoch 2 after some batches, resumed where ``set_epoch`` may have asked for another."""
    first = Progress(Epochs(knows))
    first.next_epoch = 2
    first.start()
    first.assigner.take(taken)
    progress = Progress(Epochs(knows))
    progress.resume(first.state_dict(), **how)
    if sets is not None:
        progress.next_epoch = sets
    return progress


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
@pytest.mark.parametrize("peek", [0, 1, 2])
def test_resumed_rest_survives_peek(taken, peek):
    progress = resumed(taken)
    assert progress.assigner.checked
    progress.start()
    rest = taken < 4
    assert (progress.assigner.epoch, progress.assigner.batches) == ((2, taken) if rest else (3, 0))
    if not rest:
        return
    progress.assigner.take(min(peek, 4 - taken))
    progress.next_epoch = 2
    progress.start()
    assert (progress.assigner.epoch, progress.assigner.batches) == (2, taken)
    progress.finish()
    assert progress.next_epoch == 3
    progress.next_epoch = 2
    progress.start()
    assert (progress.assigner.epoch, progress.assigner.batches) == (2, 0), "all of it, where it is set once more"


@pytest.mark.parametrize("taken", [0, 2, 4])
@pytest.mark.parametrize("knows", [True, False])
def test_skipped_rest_is_logged(taken, knows):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        progress = resumed(taken, knows=knows, skip_rest=True)
    left = f"{4 - taken if knows else 'some'} samples of epoch 2 are left out, as skip_rest says"
    assert [str(one.message) for one in caught] == [left] * (taken < 4)
    assert (progress.assigner.checked, progress.assigner.over) == (False, True)
    progress.start()
    assert (progress.assigner.epoch, progress.assigner.batches, progress.next_epoch) == (3, 0, 4)


@pytest.mark.parametrize(("peek", "warned"), [(0, True), (1, True), (2, False)])
def test_resumed_epoch_peeked_is_missed(peek, warned):
    progress = resumed(1)
    progress.start()
    progress.assigner.take(peek)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            progress.start()
    said = "epoch 3 begins, but the loader was resumed in epoch 2, of which 3 samples are left out now: to go on with "
    assert [str(one.message)[: len(said)] for one in caught] == [said] * warned


def test_finished_epoch_set_again_is_empty():
    done = resumed(4, sets=2)
    done.start()
    assert (done.assigner.epoch, done.assigner.over) == (2, True)
    fresh = Progress(Epochs())
    fresh.resume({**Epochs().state_dict(), "next_epoch": np.array(0)})
    fresh.start()
    assert (fresh.assigner.epoch, fresh.assigner.over, fresh.next_epoch) == (0, False, 1)
    fresh.adopt({**done.assigner.state_dict(), "next_epoch": np.array(7)})
    assert (fresh.assigner.epoch, fresh.next_epoch) == (2, 7)


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


def test_loading_is_that_of_a_dataloader_unless_asked():
    usual = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    for field in dataclasses.fields(Loading):
        assert field.default == usual[field.name].default, field.name
