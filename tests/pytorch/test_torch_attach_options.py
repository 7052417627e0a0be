"""What attach() makes of a script's options, and what its balance gives back."""

import warnings
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import Auto, LastValue
from paceline.recording.allowance import Allowance
from paceline.recording.torch.busy_clock import Clock
from paceline.recording.torch.marks import CPUMarks
from paceline.torch import BalancedLoader, BalanceWarning, attach

module = import_module(attach.__module__)

FACTS = ("global_batch", "shares", "settings", "position")


@pytest.fixture
def script(alone):
    """Model and loader of a job of one process."""
    return DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(torch.randn(40, 4), 8)


@pytest.mark.parametrize("missing", range(4))
def test_non_loader_refused_by_first_lack(missing):
    loader = SimpleNamespace(**dict.fromkeys([*FACTS[:missing], *FACTS[missing + 1 : missing + 2]]))
    with pytest.raises(TypeError, match=f"got SimpleNamespace, which has no {FACTS[missing]}$"):
        attach(torch.nn.Linear(1, 1), loader)
    with pytest.raises(TypeError, match="got a DataLoader, whose batches are fixed"):
        attach(torch.nn.Linear(1, 1), torch.utils.data.DataLoader([1, 2]))


def test_options_that_do_not_fit_are_refused(script):
    model, loader = script
    for timeout in (0, -1.0):
        with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
            attach(model, loader, timeout=timeout)
    with pytest.raises(TypeError, match=r"options of attach\(\) are about a balanced loader"):
        attach(model, timeout=3.0)


OPTIONS = [
    {"predictor": LastValue()},
    {"policy": Policy()},
    {"timeout": 9.0},
    {"workers": ["a"]},
    {"covariates": []},
]


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


@pytest.mark.parametrize("delay", [0, 1])
def test_balancer_plans_named_workers_one_later(script, monkeypatch, delay):
    told, made = {}, []

    class Late(Clock):
        def __init__(self, *of):
            super().__init__(*of)
            made.append(of)
            self.delay = delay

    def balancer(predictor, **options):
        told.update(options, predictor=predictor)
        return LoadBalancer(predictor, **options)

    monkeypatch.setattr(module, "Clock", Late)
    monkeypatch.setattr(module, "LoadBalancer", balancer)
    predictor, policy = LastValue(), Policy(lower=2)
    attach(*script, predictor=predictor, policy=policy, workers=["w"]).close()
    assert told == {
        "predictor": predictor,
        "workers": ("w",),
        "global_batch": 8,
        "policy": policy,
        "horizon": 1 + delay,
    }
    ((marks, allowance, threads),) = made
    assert (isinstance(marks, CPUMarks), isinstance(allowance, Allowance)) == (True, True)
    assert threads == torch.get_num_threads()
    attach(*script).close()
    assert isinstance(told["predictor"], Auto)


def test_the_quota_of_a_cpu_is_none_of_a_devices(script, monkeypatch):
    made = []

    class Marks:
        def mark(self):
            return 0.0

    monkeypatch.setattr(module, "marks_of", lambda model: Marks())
    monkeypatch.setattr(module, "Clock", lambda *of: made.append(of) or Clock(*of))
    attach(*script).close()
    assert made[0][1] is None


@pytest.mark.parametrize("sentence", ["", "The data differ."])
def test_data_that_differ_between_ranks_are_said_once(script, monkeypatch, sentence):
    seen = []
    monkeypatch.setattr(module, "different", lambda exchange, dataset: seen.append(dataset) or sentence)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BalanceWarning)
        balance = attach(*script)
        balance.warn("data", "again")
    told = [str(one.message) for one in caught if one.category is BalanceWarning]
    assert told == [sentence or "again"]
    assert seen == [script[1].dataset]
    balance.close()
