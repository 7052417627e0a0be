"""The parts of an attached job that look on: buffers, refusals, batches that are skipped, and sums that count."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.torch import BalancedLoader, Costs, attach
from paceline.torch.buffers import FAR, FIRST, THEN, Buffers
from paceline.torch.optimizers import Optimizers
from paceline.torch.weighting.listener import BalanceWarning

looks = st.tuples(st.integers(0, 2), st.sampled_from(["alike", "apart", "unknown"]), st.booleans())


@settings(max_examples=60)
@given(st.lists(looks, max_size=8))
def test_buffers_that_changed_alike_twice_with_equal_batches_and_part_with_unequal_ones_are_said(seen):
    buffers, shared, before, ended = Buffers(), 0, math.nan, False
    for value, how, uneven in seen:
        second = {"alike": value, "apart": value + 0.5, "unknown": math.nan}[how]
        told = buffers.learn(np.array([value, second], dtype=float), uneven=uneven)
        if how == "unknown" or ended:
            assert not told
            continue
        assert bool(told) == (how == "apart" and uneven and shared >= 2)
        shared += how == "alike" and value != before and not uneven
        before, ended = value, how == "apart"
        assert buffers.apart == ended


@given(st.floats(1e-3, 1e9), st.sampled_from([1.0, -1.0]))
def test_sums_differ_beyond_rounding_by_more_than_a_share_of_the_largest(size, sign):
    for apart in (0.5, 1.0 - 1e-4, 1.0 + 1e-4, 2.0):
        buffers, other = Buffers(), size * (1 - FAR * apart)
        buffers.learn(sign * np.array([other, size]), uneven=False)
        assert buffers.apart == (apart > 1)


def test_the_buffers_that_are_looked_at_are_numbers_that_no_rank_has_for_itself():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3), torch.nn.Identity())
    empty = Buffers()
    assert math.isnan(empty.sum([model], 0))
    assert empty.apart, "there is nothing to look at"
    model[2].register_buffer("count", torch.tensor(7))
    model[1].register_buffer("centre", torch.tensor([1.5, 2.0]))
    model[2].register_buffer("width", torch.tensor(0.25))
    buffers = Buffers()
    known = [exchange for exchange in range(100) if buffers.sum([model, model], exchange) == 7.5]
    assert known == [*range(FIRST), *(k for k in range(FIRST, 100) if k % THEN == 0)]
    for value in (1.0, 2.0):
        buffers.learn(np.array([value, value]), uneven=False)
    assert "(such as 1.centre)" in buffers.learn(np.array([3.0, 4.0]), uneven=True)
    assert math.isnan(buffers.sum([model], 0))


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_a_step_is_refused_by_this_rank_and_by_what_a_device_shows_of_others(refused, in_backward, waits):
    called = []
    refusal = SimpleNamespace(
        error=RuntimeError("wrong") if refused else None,
        waits=waits,
        raise_error=lambda: called.append("error"),
        raise_of_device=lambda: called.append("device"),
    )
    model = torch.nn.Linear(2, 1)
    one = SimpleNamespace(
        refusal=refusal, in_backward=in_backward, alone=False, model=model, summed_for=lambda optimizer: True
    )
    listener = SimpleNamespace(loss="mean", weights_loss=True, warn=None)
    checks = Optimizers(listener, [one], counts_all=True)
    checks.before_step(torch.optim.SGD(model.parameters(), 0.1), closure=False)
    assert called == ["error"] * (refused and not in_backward) + ["device"] * waits


@pytest.fixture
def wrapped(alone):
    """A model in a job of one rank."""
    return DistributedDataParallel(torch.nn.Linear(3, 1))


@pytest.mark.parametrize("sums", [1, 2, 3])
def test_an_iteration_is_a_batch_however_often_its_gradients_are_summed(wrapped, sums):
    loader, records = BalancedLoader(torch.randn(40, 3), 8), []
    balance = attach(wrapped, loader)
    balance.on_iteration.append(records.append)
    for inputs in loader:
        for _ in range(sums):
            wrapped(inputs).square().mean().backward()
            wrapped.zero_grad()
    balance.close()
    assert [one.index for one in records] == list(range(5))
    assert [one.sizes.tolist() for one in records] == [[8]] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taken", "computed"), [(10, 0), (10, 1), (10, 4), (10, 5), (11, 5), (10, 10), (70, 31), (70, 32)]
)
def test_a_loop_that_trains_on_the_lesser_part_of_its_batches_is_told_once(wrapped, taken, computed):
    """After 64 batches at once, and else when the next loop begins."""
    loader = BalancedLoader(torch.randn(2 * taken, 3), 2)
    balance = attach(wrapped, loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, inputs in enumerate(loader):
            if number < computed:
                wrapped(inputs).square().mean().backward()
                wrapped.zero_grad()
        early = [str(one.message) for one in caught if one.category is BalanceWarning]
        next(iter(loader))
    told = [str(one.message) for one in caught if "gave the model" in str(one.message)]
    at = min(taken, 64) if 0 < 2 * computed < min(taken, 64) else taken
    expected = f"The loop took {at} batches, and gave the model {computed} of them."
    assert [one[: len(expected)] for one in told] == [expected] * (0 < 2 * computed < taken)
    assert bool(early) == (taken >= 64 and 0 < 2 * computed < 64)
    balance.close()


def test_a_state_that_leaves_out_batches_that_were_fetched_says_how_many(wrapped):
    loader = BalancedLoader(torch.randn(20, 3), 2)
    balance = attach(wrapped, loader)
    batches = iter(loader)
    first, *_ = [next(batches) for _ in range(3)]
    wrapped(first).square().mean().backward()
    with pytest.warns(BalanceWarning, match="^2 batches have been fetched but not computed"):
        balance.state_dict()
    balance.close()


def test_loss_terms_are_counted_by_the_loader_or_by_the_script_and_not_by_both(wrapped):
    data = torch.randn(12, 3)
    knows = BalancedLoader(data, 4, costs=Costs(lengths=[1] * 12, loss_terms=[2] * 12))
    with pytest.raises(ValueError, match="the loader knows its loss terms already"):
        attach(wrapped, knows, loss_terms=len)
    with pytest.raises(TypeError, match="loss_terms must be a function of a batch with a BalancedLoader, got 3"):
        attach(wrapped, BalancedLoader(data, 4), loss_terms=3)
    attach(wrapped, BalancedLoader(data, 4, costs=Costs(lengths=[1] * 12)), loss_terms=len).close()


@pytest.mark.parametrize(("loss", "says"), [("mean", "The model was given 5 rows in training"), ("sum", "")])
def test_rows_from_elsewhere_are_said_where_their_weight_may_be_wrong_and_else_not(wrapped, loss, says):
    balance = attach(wrapped, loader := BalancedLoader(torch.randn(24, 3), 8), loss=loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for inputs in loader:
            for rows in (inputs, torch.randn(5, 3)):
                wrapped(rows).square().mean().backward()
                wrapped.zero_grad()
    told = [str(one.message) for one in caught if one.category is BalanceWarning]
    assert [one[: len(says)] for one in told] == [says] * bool(says)
    balance.close()


@pytest.mark.parametrize(("lower", "least"), [(1, 1), (3, 3), ({"w": 3}, 1)])
def test_a_loader_that_divides_by_cost_leaves_every_rank_the_samples_that_the_policy_asks_of_all(wrapped, lower, least):
    loader = BalancedLoader(torch.randn(12, 3), 6, costs=Costs(lengths=[1] * 12))
    attach(wrapped, loader, policy=Policy(lower=lower), workers=["w"]).close()
    assert loader.least_samples == least
