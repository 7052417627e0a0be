"""Every step of an optimizer is looked at: what would let ranks part is refused, what nothing weights is said."""

import sys
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach, weight_terms
from paceline.torch.weighting.listener import BalanceWarning


@pytest.fixture(params=["mean", "sum"])
def job(request, alone):
    """A model whose loss terms the script counts, in a job of one rank."""
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    terms = weight_terms(model, loss=request.param)
    yield SimpleNamespace(model=model, terms=terms, loss=request.param, inputs=torch.ones(4, 3))
    terms.close()


def trained(job, optimizer):
    """Train the job's model for one step, and return what is said."""
    job.model.zero_grad()
    job.terms.count(8)
    job.model(job.inputs).mean().backward()
    return said(optimizer)


def said(optimizer, *closure):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step(*closure)
    return [str(one.message) for one in caught if one.category is BalanceWarning]


def sgd(*parts):
    return torch.optim.SGD([parameter for part in parts for parameter in part], 0.1)


def test_a_step_on_summed_gradients_of_the_model_says_nothing(job):
    optimizer = sgd(job.model.parameters())
    assert [trained(job, optimizer) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_step_is_the_mean_over_the_terms_of_all_its_micro_batches(job, micro_batches):
    loss = job.loss
    rng, model = np.random.default_rng(micro_batches), DistributedDataParallel(torch.nn.Linear(3, 2))
    terms = weight_terms(model, loss=loss, accumulate=micro_batches)
    for _ in range(8):
        counts = rng.integers(0 if loss == "sum" else 1, 9, micro_batches).tolist()
        rows = [torch.tensor(rng.normal(size=(count, 3)), dtype=torch.float32) for count in counts]
        total = sum(counts)
        expected = torch.cat(rows).sum(dim=0) / max(total, 1)
        model.zero_grad()
        for number, inputs in enumerate(rows):
            terms.count(len(inputs))
            outputs = model(inputs).sum(dim=1)
            one = outputs.sum() if loss == "sum" else outputs.mean() / micro_batches
            with nullcontext() if number == micro_batches - 1 else model.no_sync():
                one.backward()
        torch.testing.assert_close(model.module.weight.grad, expected.expand(2, 3), rtol=1e-5, atol=1e-6)
    terms.close()


def test_a_further_model_that_trains_beside_it_is_said_once_and_one_that_does_not_never(job):
    idle, other = (DistributedDataParallel(torch.nn.Linear(3, 1)) for _ in range(2))
    assert trained(job, sgd(job.model.parameters())) == []
    other(job.inputs).mean().backward()
    other.eval()
    assert trained(job, sgd(job.model.parameters())) == [], "it does not train"
    other.train()
    (sentence,) = trained(job, sgd(job.model.parameters()))
    assert sentence.startswith("A further model in DistributedDataParallel (Linear) trains in this process")
    assert trained(job, sgd(job.model.parameters())) == []
    assert idle.training


def test_as_long_as_batches_are_equal_nothing_can_be_weighted_wrongly_and_nothing_is_said(job):
    job.terms.close()
    model, other = (DistributedDataParallel(torch.nn.Linear(3, 1)) for _ in range(2))
    loader = BalancedLoader(torch.ones(8, 3), 4)
    balance = attach(model, loader)
    other(job.inputs).mean().backward()
    for inputs in loader:
        model(inputs).mean().backward()
        assert said(sgd(model.parameters(), other.parameters())) == []
        model.zero_grad()
    balance.close()


def test_parameters_of_no_model_whose_gradients_are_summed_are_said_by_number_and_shape(job):
    beside = [
        torch.nn.Parameter(torch.ones(5, 2)),
        torch.nn.Parameter(torch.ones(1)),
        torch.nn.Parameter(torch.ones(7)),
    ]
    for one in beside[:2]:
        one.grad = torch.ones_like(one)
    (sentence,) = trained(job, sgd(job.model.parameters(), beside))
    assert sentence.startswith(
        "An optimizer steps 2 parameters (such as one of shape [5, 2]) that belong to no attached"
    )


def test_gradients_that_no_backward_pass_has_summed_are_said(job):
    optimizer = sgd(job.model.parameters())
    assert trained(job, optimizer) == []
    (sentence,) = said(optimizer)
    assert sentence.startswith("An optimizer steps on gradients that no backward pass of its model has summed")
    assert said(sgd(job.model.parameters())) == [], "another optimizer has not stepped on them"


def test_gradients_of_one_rank_alone_are_refused(job):
    optimizer = sgd(job.model.parameters())
    with job.model.no_sync():
        job.terms.count(8)
        job.model(job.inputs).mean().backward()
    said(sgd([torch.nn.Parameter(torch.ones(1))]))  # one of other parameters may step
    with pytest.raises(RuntimeError, match="the optimizer steps on gradients of this rank alone"):
        optimizer.step()
    optimizer.zero_grad()
    assert said(optimizer) == [], "nothing is left to step on"


def test_zeros_that_a_batch_without_loss_terms_leaves_on_one_rank_alone_are_refused_too(job):
    optimizer = sgd(job.model.parameters())
    with job.model.no_sync():
        job.terms.count(0)
        (job.model(job.inputs).sum() * 0).backward()
    with pytest.raises(RuntimeError, match="the optimizer steps on gradients of this rank alone"):
        optimizer.step()


def test_an_optimizer_that_chooses_its_step_by_the_loss_is_refused_for_the_model_alone(job):
    other = torch.nn.Parameter(torch.ones(1))

    def closure():
        other.grad = torch.ones_like(other)
        return (other**2).sum()

    job.terms.count(8)
    job.model(job.inputs).mean().backward()
    with pytest.raises(RuntimeError, match="LBFGS chooses its step by the loss of each rank's own batch"):
        torch.optim.LBFGS(job.model.parameters()).step(lambda: torch.zeros(()))
    torch.optim.LBFGS([other], max_iter=1).step(closure)


def test_a_step_that_computes_its_gradients_itself_is_not_taken_for_one_by_hand(job):
    optimizer = sgd(job.model.parameters())
    assert trained(job, optimizer) == []

    def closure():
        return torch.zeros(())

    assert said(optimizer, closure) == []
    assert len(said(optimizer)) == 1


def test_a_scheduler_that_counts_the_batches_of_one_rank_is_no_matter_for_a_loader_of_ones_own(job, monkeypatch):
    class AcceleratedScheduler:
        split_batches = False

    scheduler = AcceleratedScheduler()
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", SimpleNamespace(AcceleratedScheduler=AcceleratedScheduler))
    assert trained(job, sgd(job.model.parameters())) == []
    assert not scheduler.split_batches


def test_steps_after_the_weights_are_taken_off_are_not_looked_at(job):
    optimizer = sgd(job.model.parameters())
    job.terms.close()
    job.terms.close()
    job.model(job.inputs).mean().backward()
    assert said(optimizer) == said(optimizer) == []


def test_terms_are_said_once_before_every_pass_and_must_be_a_number(job):
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="loss_terms must be a finite number that is not negative"):
            job.terms.count(wrong)
    job.terms.count(0)
    with pytest.raises(RuntimeError, match="called twice before a forward pass"):
        job.terms.count(3)
    job.model(job.inputs).mean().backward()
    with pytest.raises(RuntimeError, match="how many terms has the loss of this batch"):
        job.model(job.inputs).mean().backward()
    with pytest.raises(TypeError, match="there is no loader to loop over, or no loss_terms= to count by"):
        iter(job.terms).__next__()


def test_options_that_make_no_sense_are_refused(job):
    model = job.model
    with pytest.raises(TypeError, match="weight_terms needs DistributedDataParallel, got Linear"):
        weight_terms(model.module)
    with pytest.raises(TypeError, match="weight_terms is for a loader of your own"):
        weight_terms(model, SimpleNamespace(position=0))
    with pytest.raises(ValueError, match=r'loss must be "mean" or "sum" with a loader of your own, got \'scaled\''):
        weight_terms(model, loss="scaled")
    with pytest.raises(ValueError, match="accumulate must be at least 1 micro-batch, got 0"):
        weight_terms(model, accumulate=0)
