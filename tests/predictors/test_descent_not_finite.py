"""A loss that is not finite ends the training, and says in which batch, and which jobs its windows come from."""

import math

import numpy as np
import pytest

from paceline.predictors import Training
from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.neural import Examples
from paceline.predictors.networks.training_windows import windows_of

torch = pytest.importorskip("torch", reason="needs the torch extra")

from test_descent import collected, trained  # noqa: E402 - it needs torch

from paceline.predictors.networks import descent  # noqa: E402 - it imports torch


def broken(places, column="inputs", value=np.nan, count=8, jobs=2):
    """Return windows of some jobs, of which some numbers are not finite."""
    parts = []
    for job in range(jobs):
        made = Examples(np.ones((count, 2)), np.ones(count), np.arange(count) > 5)
        for k in places.get(job, ()):
            getattr(made, column)[k] = value
        parts.append((f"job {job}", [made]))
    return windows_of(parts, jobs * count, memory=10**6, seed=0)


@pytest.mark.parametrize(
    ("windows", "says"),
    [
        (broken({1: [0]}), r"batch 1 of epoch 1: 1 of its windows are not, from job 1$"),
        (broken({0: [0], 1: [1, 2]}), "3 of its windows are not, from job 0, job 1$"),
        (broken({1: [0]}, "targets", np.inf), "batch 1 of epoch 1: 1 of its windows are not, from job 1$"),
        (broken({1: [0]}, "targets"), "whose windows are finite and come from job 0, job 1: lower the learning rate"),
        (broken({k: [0] for k in range(3)}, jobs=3), "from job 0, job 1, job 2$"),
        (broken({k: [0] for k in range(5)}, jobs=5), "5 of its windows are not, from job 0, job 1, job 2 and 2 more$"),
    ],
)
def test_nonfinite_loss_names_batch_and_jobs(windows, says):
    with pytest.raises(ValueError, match=f"the loss is not finite in .*{says}"):
        trained(windows, Training(epochs=1, batch_size=64))


def test_nonfinite_loss_later_names_epoch():
    calls = iter(range(100))

    def loss(inputs, targets):
        return weight.sum() * (math.nan if torch.is_grad_enabled() and next(calls) == 7 else 1.0)

    weight = torch.ones(1)
    columns, training = ("inputs", "targets"), Training(epochs=9, batch_size=4, learning_rate=0.125)
    with pytest.raises(ValueError, match=r"batch 3 of epoch 2, .* lower the learning rate, which is 0\.125"):
        descent.descend({"w": weight}, loss, columns, collected(), training, Fitting(), torch.Generator())
