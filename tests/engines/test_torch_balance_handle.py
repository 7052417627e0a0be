"""What the handle of a balanced job says, tells and gives back."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, Costs, attach
from paceline.torch import balance as module


@pytest.fixture
def script(alone):
    """Model and loader of a job of one process."""
    return DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(torch.randn(40, 4), 8)


class attached:  # noqa: N801 - a context
    def __init__(self, script, **options):
        self.balance = attach(*script, **options)

    def __enter__(self):
        return self.balance

    def __exit__(self, *error):
        self.balance.close()


def test_a_balance_says_what_it_was_given_and_what_it_knows(script):
    predictor = LastValue()
    with attached(script, predictor=predictor, workers=["w"], loss="sum") as balance:
        assert (balance.balancer.predictor, balance.workers, balance.loss) == (predictor, ("w",), "sum")
        assert balance.plan is balance.balancer.plan
        assert (balance.work, balance.overhead_seconds, balance.closed) == (None, 0.0, False)
        with pytest.raises(RuntimeError, match="the gradients are weighted already: leave the loss alone"):
            balance.scale(torch.ones(()))
    costs = BalancedLoader(torch.randn(40, 4), 8, costs=Costs(lengths=[1] * 40))
    with attached((script[0], costs)) as balance:
        np.testing.assert_array_equal(balance.work.coefficients, costs.coefficients)


def test_the_last_iteration_is_told_when_the_balance_closes_and_its_observers_are_closed(script):
    model, loader = script
    told = []

    class Observer:
        def __call__(self, iteration):
            told.append(iteration.index)

        def close(self):
            told.append("closed")

    balance = attach(model, loader)
    balance.on_iteration += [Observer(), lambda iteration: told.append(-iteration.index)]
    for inputs in loader:
        balance.measured(0.25)
        model(inputs).mean().backward()
    steps, passes, covariates = balance._steps, balance._passes, balance._covariates
    assert told == [0, 0, 1, -1, 2, -2, 3, -3]
    assert steps.handle is balance
    balance.close()
    balance.close()
    assert told[8:] == [4, -4, "closed"]
    assert balance.closed
    assert (passes.weightings, steps.handle, covariates.next) == ([], None, float("inf"))
    assert (passes.report(), passes.backward_ends()) == (None, None)
    assert (loader.before_batch, loader.after_batch, loader.on_start, loader.before_state) == (None,) * 4
    for inputs in loader:
        model(inputs).mean().backward()
    assert len(told) == 11


def test_what_a_script_measures_or_runs_out_of_is_in_the_next_report(script):
    model, loader = script
    with attached(script) as balance:
        rows, send = [], balance._exchange.send
        balance._exchange.send = lambda row: rows.append(row) or send(row)
        for number, inputs in enumerate(loader):
            if number == 1:
                balance.ran_out_of_memory()
                balance.measured(0.25)
            model(inputs).mean().backward()
    assert [row[5] for row in rows] == [0, 1, 0, 0, 0]
    assert [row[3] == 0.25 for row in rows] == [False, True, False, False, False]


def test_a_loader_whose_balance_is_gone_is_read_as_it_is(alone):
    model, loader = DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(torch.randn(40, 4), 8)
    steps = weakref.ref(attach(model, loader)._steps)
    for inputs in loader:
        model(inputs).mean().backward()
    assert steps() is not None, "the model holds it"
    del model, inputs
    gc.collect()
    assert steps() is None
    assert len(list(loader)) == 5
    assert loader.before_state() is None


def test_what_ranks_gather_is_compared_while_batches_of_a_loop_wait_and_the_balance_is_there(script, monkeypatch):
    made = []
    monkeypatch.setattr(module, "EqualShapes", lambda loader, waits, ranks: made.append((loader, waits, ranks)))
    balance = attach(*script)
    ((loader, waits, ranks),) = made
    assert (loader, list(ranks), waits()) == (script[1], [0], False)
    passes = balance._passes
    passes.to_come.hand_out()
    passes.to_come.hand_out()
    passes.to_come.sent()
    assert waits() is True
    balance.close()
    del balance, passes
    gc.collect()
    assert waits() is False
