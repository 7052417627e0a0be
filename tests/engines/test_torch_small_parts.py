"""Small parts of a job against slow definitions: norms, growth of gradients, gathered rows, kinds of loss, scaling."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import gather
from paceline.torch.norms import TINY, Norms
from paceline.torch.planning import RETOLD, Planning
from paceline.torch.reports import COLUMNS, RankReports
from paceline.torch.weighting import scaling
from paceline.torch.weighting.batch import Batch
from paceline.torch.weighting.loss_kind import LossKind
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.scaling import Scaling


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([0.0, 1e-320, 1.0, 2.5, 1e300]), max_size=4), min_size=1, max_size=4))
def test_a_step_has_the_mean_log_of_its_norms_and_none_without_any(steps):
    norms = Norms(late=False)
    for step in steps:
        for norm in step:
            norms.add(torch.tensor(norm, dtype=torch.float64))
        expected = np.mean([math.log(max(norm, TINY)) for norm in step]) if step else math.nan
        assert norms.take() == pytest.approx(expected, nan_ok=True)
        assert norms.logs == []


def test_norms_of_a_device_are_those_of_the_step_before_if_it_has_passed_that():
    norms, arrived, fetched = Norms(late=True), [None, -1.0, None, 2.0], []
    norms._before = SimpleNamespace(
        take=lambda: arrived.pop(0),
        forget=lambda: fetched.append("forgot"),
        fetch=lambda number: fetched.append(round(float(number), 6)),
    )
    found = []
    for step in ([1.0, math.e**2], [math.e], [], [0.0]):
        for norm in step:
            norms.add(torch.tensor(norm))
        found.append(norms.take())
    assert found == pytest.approx([math.nan, -1.0, math.nan, 2.0], nan_ok=True)
    assert fetched == ["forgot", 1.0, "forgot", 1.0, "forgot", "forgot", round(math.log(TINY), 6)]


@pytest.mark.parametrize("samples", [2, 4])
def test_the_norm_of_rows_is_that_of_a_mean_times_the_samples(samples):
    """Rows of other numbers, numbers without rows, and gradients that nobody asked for are left out."""
    kind, turn = LossKind("mean"), SimpleNamespace(samples=samples)
    rows, odd, single, fixed = (
        torch.ones(shape, requires_grad=grad)
        for shape, grad in (((8, 3), True), ((5, 3), True), ((), True), ((8,), False))
    )
    kind.watch([rows, odd, single, fixed], turn)
    kind.looks = True
    ((rows * torch.arange(24.0).view(8, 3)).sum() + 3 * odd.sum() + 3 * single).backward()
    assert kind.norms.logs == [pytest.approx(math.log(11.5 * samples))]
    kind.looks = False
    rows.sum().backward()
    assert len(kind.norms.logs) == 1
    kind.look_at_parameters(torch.tensor([3.0, 4.0]))
    assert kind.norms.logs[1] == pytest.approx(math.log(5.0))


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("counts", [[1, 3, 2], [2, 2, 2], [0, 1, 4]])
def test_rows_of_all_ranks_come_in_their_order_and_each_rank_gets_the_gradients_of_its_own(monkeypatch, rank, counts):
    parts = [torch.arange(2.0 * count).view(count, 2) + 10 * k for k, count in enumerate(counts)]
    calls = []

    def all_gather(found, own, group):
        calls.append(group)
        for k, one in enumerate(found):
            if len(calls) == 1:
                one[0] = counts[k]
                assert own.tolist() == [counts[rank]]
            else:
                one[: counts[k]], one[counts[k] :] = parts[k], -1.0
        if len(calls) == 2:
            assert own.tolist() == [*parts[rank].tolist(), *[[0.0, 0.0]] * (max(counts) - counts[rank])]

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    monkeypatch.setattr(dist, "get_rank", lambda group: rank)

    def all_reduce(total, group):
        calls.append(group)
        assert total.is_contiguous(), "the network takes numbers in the order in which they lie"
        total.mul_(2.0)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    own = parts[rank].clone().requires_grad_()
    found = gather.gather_rows(own, "g")
    assert found.tolist() == torch.cat(parts).tolist()
    weight = torch.arange(1.0, 1.0 + found.numel()).view_as(found)
    upstream = weight.t().contiguous().t()
    found.backward(upstream)
    begin = sum(counts[:rank])
    assert own.grad.tolist() == (2.0 * weight[begin : begin + counts[rank]]).tolist()
    assert upstream.tolist() == weight.tolist(), "autograd's tensor stays as it was"
    assert calls == ["g"] * 3


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(-1, 5), st.booleans(), st.data())
def test_a_batch_has_the_facts_of_its_loader_and_those_of_a_micro_batch_its_own_rows(sizes, rows, last, data):
    rank = data.draw(st.integers(0, len(sizes) - 1))
    facts = RankBatch(np.array(sizes), 0.25, 0.125, 1.5, (2.0,), rows, last)
    held = torch.ones(2)
    batch = Batch(facts, rank, 7, [held])
    own = rows if rows >= 0 else sizes[rank]
    turn = batch.turn
    assert (batch.own, facts.own(rank), batch.number, turn.samples) == (own, own, 7, own)
    assert (turn.share, turn.total, turn.known, turn.part) == (0.25, sum(sizes), True, 0.125)
    assert turn.whole == pytest.approx(math.nan if rows >= 0 else 1.5, nan_ok=True)
    assert (turn.features, turn.last) == ((2.0,), last)
    assert (batch.computed, batch.recognised, batch.skipped, batch.later) == (False, False, False, [])
    assert [batch.waiting, batch.gone, len(batch.places)] == [True, False, 1]
    batch.skipped = True
    assert not batch.waiting
    batch.skipped, batch.computed = False, True
    assert not batch.waiting
    del held
    assert batch.gone
    plain = RankBatch.plain(np.array(sizes), rank)
    assert (plain.weight, plain.part, plain.whole) == (sizes[rank] / sum(sizes), sizes[rank] / sum(sizes), 1.0)
    assert (plain.features, plain.rows, plain.last, plain.own(rank)) == ((), -1, True, sizes[rank])


class Owner:
    def __init__(self, turn):
        self.turn, self.refused, self.trained = turn, [], 0

    def settle(self, one):
        return self.turn

    def refuse(self, error):
        self.refused.append(str(error))

    def trains(self):
        self.trained += 1


def scaled(monkeypatch, owners, loss, newest=None):
    """Scale a loss behind which are passes of these owners, of which the last is of a model that is not attached."""
    passes = [SimpleNamespace(owner=lambda one=one: one, scaled=False) for one in owners]
    monkeypatch.setattr(scaling, "behind", lambda tensors: passes)
    monkeypatch.setattr(scaling, "number_now", lambda: 40)
    one = Scaling([*owners[:-1]], SimpleNamespace(turn=newest), 3)
    return one, passes, one.scale(loss).item()


def test_a_loss_is_scaled_by_the_weight_of_its_batch_times_the_ranks(monkeypatch):
    turns = [SimpleNamespace(share=share, known=known) for share, known in ((0.5, False), (0.25, True), (0.125, True))]
    newest, loss = SimpleNamespace(share=1.0, known=True), torch.ones((), requires_grad=True) * 2.0
    foreign, own, other = (Owner(turn) for turn in turns)
    one, passes, found = scaled(monkeypatch, [foreign, own, Owner(None), None, other], loss, newest)
    assert found == 2.0 * 0.25 * 3
    assert [each.scaled for each in passes] == [True, True, True, False, False]
    assert one._all_before == 0
    assert own.refused == []
    _, _, found = scaled(monkeypatch, [foreign, Owner(None), None], loss, newest)
    assert found == 2.0 * 3, "that of the last batch"
    one, _, found = scaled(monkeypatch, [own, other, None], loss, newest)
    assert found == 2.0 * 0.25 * 3
    assert other.refused == [scaling.TWO_BATCHES.format("0.25 and 0.125")]
    one, _, found = scaled(monkeypatch, [own, None], torch.ones(()), newest)
    assert (found, own.trained, one._all_before) == (3.0, 1, 40)
    with pytest.raises(RuntimeError, match=r"scale\(\) needs a forward pass of the attached model before it"):
        scaled(monkeypatch, [own, None], torch.ones(()))


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(1, 3))
def test_costs_are_learned_by_micro_batches_and_speeds_are_told_in_their_units(sizes, parts):
    """Of iterations before the newest, as many as a predictor remembers, and of none that has covariates."""
    asked, told, stepped = [], [], []
    shares_W = np.array(sizes)
    features_WF = np.arange(2.0 * len(sizes)).reshape(-1, 2) + 1.0
    seconds_W = np.arange(len(sizes)) + 2.0

    class Work:
        coefficients, fixed = np.array([1.0, 2.0]), 0.25

        def work(self, features):
            return features @ self.coefficients

        def observe(self, features, seconds):
            asked.append((features.tolist(), seconds.tolist()))
            self.coefficients = np.array([3.0, 1.0])
            return True

        def recent(self, iterations):
            assert iterations == RETOLD
            rows = np.column_stack([features_WF, seconds_W])
            return np.stack([rows, 2 * rows, 3 * rows])

    loader = SimpleNamespace(coefficients=np.ones(2), shares=shares_W)
    plan = SimpleNamespace(sizes=shares_W, split=SimpleNamespace(sizes=shares_W), iteration=3)
    predictor = SimpleNamespace(reset=lambda workers: told.append(list(workers)))
    workers = [f"w{k}" for k in range(len(sizes))]
    balancer = SimpleNamespace(plan=plan, workers=workers, predictor=predictor, observe=told.append)
    balancer.step = lambda report, covariates: stepped.append((report, covariates))
    planning = Planning(balancer, loader, None, workers, 0)
    planning.work = Work()
    row = dict.fromkeys(COLUMNS, 1.0) | {"micro_batches": float(parts), "samples": 5.0 * parts}
    report = np.array([[*(row | {"seconds": each * parts}).values()] for each in seconds_W])
    planning.learn(RankReports(np.column_stack([report, features_WF * parts]), 2))
    ((features, seconds),) = asked
    np.testing.assert_allclose(features, features_WF)
    np.testing.assert_allclose(seconds, seconds_W)
    assert loader.coefficients.tolist() == [3.0, 1.0]
    work_W = features_WF @ [3.0, 1.0]
    at_shares = 0.25 + (seconds_W - 0.25) * shares_W / work_W
    ((newest, covariates),) = stepped
    assert covariates is None
    np.testing.assert_allclose((newest.samples, newest.seconds), (shares_W, at_shares))
    change_W = np.log(work_W / (features_WF @ [1.0, 2.0]))
    if np.ptp(change_W) > 0.02:
        assert told[0] == workers
        assert len(told) == 3, "the newest comes by itself"
        for times, each in zip((1.0, 2.0), told[1:], strict=True):
            expected = 0.25 + (seconds_W * times - 0.25) * shares_W / (work_W * times)
            np.testing.assert_allclose((each.samples, each.seconds), (shares_W, expected))
