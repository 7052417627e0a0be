"""The audit of a loss in this process, from its batches to its verdict."""

import pytest
import torch

from paceline.torch import audit


def batches_of(*sizes, dtype=torch.float64):
    chance = torch.Generator().manual_seed(3)
    return [torch.randn(size, 3, generator=chance).to(dtype) for size in sizes]


def linear(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).to(dtype)


@pytest.mark.parametrize(("ranks", "sizes"), [(2, (4, 6)), (3, (6,))])
def test_audit_compares_ranks_and_steps(ranks, sizes):
    model = linear()
    found = audit(lambda rows: model(rows).square().mean(), batches_of(*sizes), ranks=ranks, model=model)
    assert (found.status.name, found.steps, found.ranks) == ("EXACT", len(sizes), ranks)
    assert found.notes == ("Dropout is off.",)
    total = audit(lambda rows: model(rows).square().sum(), iter(batches_of(*sizes)), ranks=ranks, model=model)
    assert (total.cause.name, total.parameter) == ("SUM", "weight")
    assert total.detail == f"{1 / ranks:.4g} times that of one process"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduce", "cause"),
    [
        (lambda outputs: (outputs - outputs.mean(0)).square().mean(), "ROWS"),
        (lambda outputs: outputs.square().sum() / outputs.detach().abs().sum(), "TERMS"),
        (lambda outputs: outputs.square().sum() * 0 / 0, "NOT_A_NUMBER"),
    ],
)
def test_audit_finds_the_cause(reduce, cause):
    model = linear()
    assert audit(lambda rows: reduce(model(rows)), batches_of(8, 8), model=model).cause.name == cause


@pytest.mark.slow
def test_audit_disables_dropout():
    layers = {"dropout": 0.5, "num_layers": 2, "batch_first": True}
    lstm, linear_ = torch.nn.LSTM(3, 3, **layers).double(), linear()

    def step(rows):
        return torch.nn.functional.dropout(linear_(lstm(rows[:, None])[0])).square().mean()

    found = audit(step, batches_of(8, 8), model=torch.nn.ModuleList([lstm, linear_]))
    assert found.status.name == "EXACT"
    assert found.deviation < 1e-14
    assert lstm.dropout == 0.5
    assert (torch.nn.functional.dropout(torch.ones(1000)) == 0).any()


@pytest.mark.slow
def test_audit_restores_buffers():
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(2)).double()
    before = model[1].running_mean.clone()
    found = audit(lambda rows: model(rows).square().mean(), batches_of(8, 8), model=model)
    assert (found.cause.name, found.detail) == ("ROWS", "BatchNorm1d")
    assert torch.equal(model[1].running_mean, before)


def test_audit_restores_random_state():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    before = torch.get_rng_state()
    found = audit(lambda rows: (rows * weight * (1 + torch.rand(len(rows), 1).double())).mean(), batches_of(8))
    assert (found.status.name, found.cause.name) == ("COULD_NOT_TELL", "CHANCE")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_audit_follows_gradients_of_some_rows_only():
    one, other = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def step(rows):
        return sum((row * (one if row[0] > 0 else other)).sum() for row in rows)

    assert audit(step, batches_of(8)).cause.name == "SUM"


@pytest.mark.slow
def test_audit_compares_only_the_model_if_given():
    model = linear()

    def step(rows):  # a gradient penalty: the inputs have gradients too
        inputs = rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
        return slope.square().mean() + model(inputs).square().mean()

    assert audit(step, batches_of(8, 8), model=model).status.name == "EXACT"


def test_audit_refuses_what_it_cannot_compare():
    with pytest.raises(ValueError, match="ranks must be at least 2, got 1"):
        audit(lambda rows: rows.sum(), batches_of(4), ranks=1)
    with pytest.raises(ValueError, match=r"must hold tensors .* got batches of \[0\]"):
        audit(len, ["text"])
    with pytest.raises(ValueError, match="depends on the model's parameters"):
        audit(lambda rows: rows.sum(), batches_of(4))
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="depends on the model's parameters"):
        audit(lambda rows: (rows * weight).sum(), batches_of(4), model=linear())
