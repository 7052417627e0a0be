"""The audit of a loss in a notebook, from its batches to its verdict."""

import pytest
import torch

from paceline.audit import audit


def batches_of(*sizes):
    chance = torch.Generator().manual_seed(3)
    return [torch.randn(size, 3, generator=chance).double() for size in sizes]


@pytest.mark.parametrize(("ranks", "sizes"), [(2, (4, 6)), (3, (6,))])
def test_audit_runs_asked_ranks_and_steps(ranks, sizes):
    model = torch.nn.Linear(3, 2).double()
    found = audit(lambda rows: model(rows).square().mean(), batches_of(*sizes), ranks=ranks, model=model)
    assert (found.status.name, found.steps, found.ranks) == ("EXACT", len(sizes), ranks)
    assert found.notes[-1] == "Dropout is off."
    assert len(found.notes) == 1
    total = audit(lambda rows: model(rows).square().sum(), iter(batches_of(*sizes)), ranks=ranks, model=model)
    assert (total.cause.name, total.parameter) == ("SUM", "bias") or total.parameter == "weight"
    assert total.detail == f"{1 / ranks:.4g} times that of one process"


@pytest.mark.parametrize(("sizes", "ranks", "least"), [((), 2, 4), ((4, 3), 2, 4), ((5,), 3, 6)])
def test_batches_must_hold_two_samples_for_each_rank(sizes, ranks, least):
    said = rf"batches must have at least {least} samples each, for {ranks} ranks; got \[{', '.join(map(str, sizes))}\]"
    with pytest.raises(ValueError, match=said):
        audit(lambda rows: rows.sum(), batches_of(*sizes), ranks=ranks)


def data():
    chance = torch.Generator().manual_seed(0)
    return [torch.randn(8, 4, generator=chance).double() for _ in range(2)]


@pytest.mark.slow
def test_notebook_mean_exact_with_dropout():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)).double()
    found = audit(lambda batch: model(batch).square().mean(), data(), model=model)
    assert (found.status.name, found.cause) == ("EXACT", None)
    assert found.deviation < 1e-14


@pytest.mark.slow
def test_notebook_recurrent_dropout_restored():
    layer = torch.nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True).double()
    found = audit(lambda batch: layer(batch[:, None])[0].square().mean(), data(), model=layer)
    assert (found.status.name, found.cause) == ("EXACT", None)
    assert layer.dropout == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduce", "cause"),
    [
        (lambda outputs: outputs.square().sum(), "SUM"),
        (lambda outputs: (outputs - outputs.mean(0)).square().mean(), "ROWS"),
        (lambda outputs: outputs.square().sum() / (1 + (outputs > 0).sum()), "TERMS"),
    ],
)
def test_a_loss_in_a_notebook_gets_its_cause(reduce, cause):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    assert audit(lambda batch: reduce(model(batch)), data(), model=model).cause.name == cause


def test_notebook_loss_of_nothing_is_nan():
    model = torch.nn.Linear(4, 3).double()
    found = audit(
        lambda batch: model(batch).square().sum() * (0 * batch.sum()) / 0 / batch.numel(), data(), model=model
    )
    assert found.cause.name == "NOT_A_NUMBER"


@pytest.mark.slow
def test_buffers_are_put_back():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
    before = model[1].running_mean.clone()
    found = audit(lambda batch: model(batch).square().mean(), data(), model=model)
    assert found.cause.name == "ROWS"
    assert found.detail == "BatchNorm1d"
    assert torch.equal(model[1].running_mean, before)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="at least 4 samples each, for 2 ranks; got \\[3\\]"):
        audit(lambda batch: batch.sum(), [torch.ones(3, 2)])


def test_a_loss_without_gradient_is_refused():
    with pytest.raises(ValueError, match="depends on parameters"):
        audit(lambda batch: batch.sum(), [torch.ones(4, 2)])


class Stopped(torch.autograd.Function):
    """Uses a weight and gives it no gradient."""

    @staticmethod
    def forward(context, inputs, weight):
        return inputs + weight

    @staticmethod
    def backward(context, gradient):
        return gradient, None


@pytest.mark.slow
def test_notebook_missing_gradient_counts_as_zero():
    weight, still = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert audit(lambda batch: Stopped.apply(batch * weight, still).mean(), data()).status.name == "EXACT"


def test_random_state_is_put_back():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    before = torch.get_rng_state()
    found = audit(lambda rows: (rows * weight * (1 + torch.rand(len(rows), 1).double())).mean(), batches_of(8))
    assert found.steps == 1
    assert torch.equal(torch.get_rng_state(), before)
