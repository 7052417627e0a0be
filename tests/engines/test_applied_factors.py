"""The factor of a step at the server times that of its schedule; and which losses are weighted as ranks sum them."""

import numpy as np
import pytest
import torch

from paceline.parameter_server import TorchOptimizer
from paceline.torch.weighting.listener import weights_loss


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("scheduled", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("inside", [True, False])
def test_a_step_is_as_long_as_its_factor_times_that_of_its_schedule_and_leaves_the_rate(factor, scheduled, inside):
    model = torch.nn.Linear(1, 1, bias=False)
    asked = []
    optimizer = TorchOptimizer(
        model, torch.optim.SGD(model.parameters(), lr=0.5), lambda applied: asked.append(applied) or scheduled
    )
    parameters = optimizer.flat.parameters if inside else np.array([1.0], dtype=np.float32)
    parameters[:] = 1.0
    for number in (1, 2):
        optimizer.step(parameters, np.array([0.125], dtype=np.float32), factor=factor, applied=7 * number)
        assert parameters.tolist() == [1.0 - number * 0.5 * 0.125 * factor * scheduled]
        assert [group["lr"] for group in optimizer.optimizer.param_groups] == [0.5]
    assert asked == [7, 14]


@pytest.mark.parametrize(
    ("loss", "count", "weighted"),
    [
        ("mean", None, True),
        ("mean", len, True),
        ("sum", None, False),
        ("sum", len, True),
        ("scaled", None, False),
        ("scaled", len, True),
    ],
)
def test_gradients_are_weighted_for_means_and_where_loss_terms_are_counted(loss, count, weighted):
    assert weights_loss(loss, count) is weighted
