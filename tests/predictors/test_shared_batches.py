"""A batch that processes share: a process without a part of it adds nothing, and all learn the sum of the losses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.predictors.networks import descent, processes


@pytest.mark.parametrize("own", [0, 2, 4])
def test_a_process_adds_its_share_of_the_loss_and_of_the_gradient(monkeypatch, own):
    weight = torch.ones(1, requires_grad=True)
    batch = (torch.tensor([1.0, 2.0, 3.0, 4.0]),)
    told, added = [], []
    monkeypatch.setattr(processes, "share", lambda whole, distributed: tuple(part[:own] for part in whole))
    monkeypatch.setattr(processes, "add_up", lambda weights, loss: added.append(loss) or loss + 5.0)
    one = SimpleNamespace(
        weights={"w": weight},
        fitting=SimpleNamespace(distributed=True),
        augment=lambda whole: whole,
        weight=lambda part: float(len(part[0])),
        _mean_loss=lambda part: (part[0] * weight).mean(),
        _tell=lambda count, loss: told.append((count, loss)),
    )
    descent_of = next(kind for kind in vars(descent).values() if hasattr(kind, "_backward"))
    descent_of._backward(one, batch, np.zeros(4, dtype=int))
    expected = float(batch[0][:own].sum()) / 4
    assert added == [pytest.approx(expected)]
    assert told == [(4, pytest.approx(expected + 5.0))]
    assert (weight.grad is None) == (own == 0)
    if own:
        assert float(weight.grad) == pytest.approx(expected)
