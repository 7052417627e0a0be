"""What a script hands to attach(): what changes nothing is said, and what is no predictor is refused."""

import warnings

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA
from paceline.torch import BalancedLoader, BalanceWarning, attach


@pytest.fixture
def script(alone):
    """Model and loader of a job of one process."""
    data = torch.utils.data.TensorDataset(torch.randn(40, 4))
    return DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(data, 20)


def test_a_bound_of_a_worker_that_is_not_there_is_said(script):
    with pytest.warns(BalanceWarning, match=r"bounds \['rank7'\], which are not among the workers \['a'\]"):
        attach(*script, policy=Policy(upper={"rank7": 5, "a": 20}), workers=["a"])


def test_bounds_of_present_workers_not_warned(script):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BalanceWarning)
        attach(*script, policy=Policy(upper={"a": 20}), workers=["a"])


@pytest.mark.parametrize("predictor", ["ewma", EWMA, 3])
def test_what_is_no_predictor_is_refused_in_a_sentence(script, predictor):
    with pytest.raises(TypeError, match=r"predictor must be an instance such as EWMA\(\), got .* creates? one"):
        attach(*script, predictor=predictor)


@pytest.mark.parametrize("micro_batch", [3, 4, 20, 50])
def test_micro_batch_gradients_equal_complete_batch(script, micro_batch):
    model, data = script[0], torch.randn(40, 4)
    loader = BalancedLoader(data, 20, shuffle=False, micro_batch=micro_batch)
    balance, whole, synced = attach(model, loader), data.split(20), []
    for inputs in loader:
        with balance.accumulating():
            synced.append(model.require_backward_grad_sync)
            model(inputs).square().mean().backward()
        assert synced[-1] == loader.step_ends
        assert model.require_backward_grad_sync
        if loader.step_ends:
            step = sum(synced) - 1
            (expected,) = torch.autograd.grad(model.module(whole[step]).square().mean(), model.module.weight)
            torch.testing.assert_close(model.module.weight.grad, expected)
            model.zero_grad()
    assert sum(synced) == 2
    assert len(synced) == 2 * -(-20 // micro_batch)


def test_early_micro_batch_sum_refused(script):
    loader = BalancedLoader(torch.randn(40, 4), 20, micro_batch=8)
    balance = attach(script[0], loader)
    with pytest.raises(RuntimeError, match=r"put forward and backward into `with balance\.accumulating\(\):`"):
        script[0](next(iter(loader))).mean().backward()
    balance.close()


def test_loss_without_terms_is_zero(script):
    """A sum over none of the samples, divided by their number, is not a number, and nor are its gradients."""
    balance, terms = attach(script[0]), torch.zeros(2, 1)
    loss = balance.scale((script[0](torch.ones(2, 4)) * terms).sum() / terms.sum(), terms.sum())
    loss.backward()
    assert loss == 0
    assert not script[0].module.weight.grad.any()
    balance.close()
