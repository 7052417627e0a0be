"""What attach() makes of a script's options, and what its balance gives back."""

from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import Auto, LastValue
from paceline.torch import BalancedLoader, attach


@pytest.fixture
def script(alone):
    """Model and loader of a job of one process."""
    return DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(torch.randn(40, 4), 8)


def test_other_loaders_are_refused():
    with pytest.raises(TypeError, match="must be a BalancedLoader or a StreamLoader, got list"):
        attach(torch.nn.Linear(1, 1), [1, 2])
    with pytest.raises(TypeError, match="got a DataLoader, whose batches are fixed"):
        attach(torch.nn.Linear(1, 1), torch.utils.data.DataLoader([1, 2]))


def test_options_that_do_not_fit_are_refused(script):
    model, loader = script
    for timeout in (0, -1.0):
        with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
            attach(model, loader, timeout=timeout)
    with pytest.raises(TypeError, match=r"options of attach\(\) apply to a balanced loader only"):
        attach(model, timeout=3.0)


OPTIONS = [
    {"predictor": LastValue()},
    {"policy": Policy()},
    {"timeout": 9.0},
    {"workers": ["a"]},
    {"covariates": []},
]


def test_step_seconds_are_those_of_micro_batches(script):
    """Of two micro-batches of 8 samples that take 0.2 s together, each takes 0.1 s."""
    model = script[0]
    loader = BalancedLoader(torch.randn(80, 4), 8, accumulate=2)
    balance = attach(model, loader, predictor=LastValue())
    for number, inputs in enumerate(loader):
        with nullcontext() if number % 2 else model.no_sync():
            model(inputs).mean().backward()
        balance.measured(0.2)
    assert balance.plan.forecast.speed == pytest.approx([80.0])
    balance.close()


def test_further_model_shares_the_balance(script):
    (model, loader), further = script, DistributedDataParallel(torch.nn.Linear(4, 1))
    balance = attach(model, loader)
    for options in OPTIONS:
        with pytest.raises(ValueError, match="this loader is already attached"):
            attach(further, loader, **options)
    assert attach(further, loader) is balance
    assert balance.models == (model, further)
    balance.close()
    assert attach(model, loader) is not balance


def test_micro_batches_take_one_model_at_a_time(script):
    loader = BalancedLoader(torch.randn(40, 4), 8, micro_batch=4)
    balance = attach(script[0], loader)
    with pytest.raises(ValueError, match=r"^micro_batch= and pack=True take one model"):
        attach(DistributedDataParallel(torch.nn.Linear(4, 1)), loader)
    balance.close()
    attach(script[0], loader).close()


@pytest.mark.parametrize("timeout", [None, 0.5, 7.0])
def test_timeout_covers_reports_and_gradients(script, monkeypatch, timeout):
    told = []
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", lambda *of: told.append(of))
    balance = attach(*script, timeout=timeout)
    assert told == ([] if timeout is None else [(timedelta(seconds=timeout), script[0].process_group)])
    balance.close()


def test_balancer_plans_the_named_workers(script):
    predictor, policy = LastValue(), Policy(lower=2)
    balance = attach(*script, predictor=predictor, policy=policy, workers=["w"])
    balancer = balance.balancer
    assert (balancer.predictor, balancer.policy, balancer.workers) == (predictor, policy, ("w",))
    assert (balancer.global_batch, balancer.horizon) == (8, 1)
    balance.close()
    default = attach(*script)
    assert isinstance(default.balancer.predictor, Auto)
    default.close()
