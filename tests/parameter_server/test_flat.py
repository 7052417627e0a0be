"""The flat row of a model's gradients, whatever a loop does to them."""

import numpy as np
import pytest
import torch

from paceline.parameter_server import FlatModel


@pytest.mark.parametrize("before", ["nothing", "none", "laid", "another"])
def test_gradients_lie_in_the_flat_row(before):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    flat = FlatModel(model)
    rows = torch.arange(12.0).reshape(4, 3)
    exact = torch.autograd.grad(model(rows).sum(), list(model.parameters()))
    exact_P = torch.cat([each.reshape(-1) for each in exact]).numpy()
    if before == "laid":
        flat.set_gradient(torch.ones(len(exact_P)))
    for parameter in model.parameters():
        if before in ("none", "another"):
            parameter.grad = None if before == "none" else torch.ones_like(parameter)
    flat.zero_grad()
    model.zero_grad(set_to_none=before == "none")  # as loops do that know nothing of the row
    model(rows).sum().backward()
    np.testing.assert_allclose(flat.gather(), exact_P, rtol=1e-6)
    for parameter in model.parameters():
        parameter.grad.mul_(2.0)  # as one that clips
    np.testing.assert_allclose(flat.gradient, 2 * exact_P, rtol=1e-6)


def test_zeroed_gradient_is_empty():
    model = torch.nn.Linear(2, 1, bias=False)
    flat = FlatModel(model)
    flat.set_gradient(torch.ones(2))
    flat.zero_grad()
    model(torch.tensor([[3.0, 5.0]])).sum().backward()
    assert flat.gather().tolist() == [3.0, 5.0]
