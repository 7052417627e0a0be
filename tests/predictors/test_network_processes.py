"""Several processes that fit one network: what each takes, sends and gets, with the exchange itself made up."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")

from paceline.predictors.fitting import Fitting  # noqa: E402 - after the check for torch
from paceline.predictors.networks import descent, processes  # noqa: E402 - they import torch
from paceline.predictors.networks.neural import Examples, Training  # noqa: E402 - after the check for torch
from paceline.predictors.networks.training_windows import windows_of  # noqa: E402 - after the check for torch


@pytest.fixture
def group(monkeypatch):
    """Be the process of number 1 of three."""
    for name, value in (("is_available", True), ("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
        monkeypatch.setattr(processes.dist, name, lambda value=value: value)
    monkeypatch.setattr(processes.dist, "get_backend", lambda: "gloo")


def test_a_process_without_a_group_is_the_first(monkeypatch, group):
    assert processes.rank() == 1
    for name in ("is_available", "is_initialized"):
        with monkeypatch.context() as patched:
            patched.setattr(processes.dist, name, lambda: False)
            assert processes.rank() == 0
    assert processes.rank() == 1


def test_a_process_takes_every_third_row_of_every_column(group):
    batch = torch.arange(14).reshape(7, 2), torch.arange(7)
    inputs, targets = processes.share(batch, distributed=True)
    assert targets.tolist() == [1, 4]
    assert inputs.tolist() == [[2, 3], [8, 9]]
    assert processes.share(batch, distributed=False) is batch


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", "cuda")])
def test_all_take_the_first_processes_value_sent_from_where_the_backend_reads(monkeypatch, group, backend, device):
    sent, made = [], torch.tensor

    def broadcast(held, src):
        sent.append((held.item(), held.dtype, src))
        held.fill_(0.75)

    def tensor(values, dtype, device):
        sent.append(device)
        return made(values, dtype=dtype)

    monkeypatch.setattr(processes.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(processes.dist, "broadcast", broadcast)
    monkeypatch.setattr(processes.torch, "tensor", tensor)
    assert processes.agreed(1.0 / 3.0) == 0.75
    assert sent == [device, (1.0 / 3.0, torch.float64, 0)]


def test_gradients_and_losses_are_added_up_in_one_exchange(monkeypatch, group):
    sent = []

    def all_reduce(sums):
        sent.append(sums.clone())
        sums += torch.arange(float(len(sums)))

    monkeypatch.setattr(processes.dist, "all_reduce", all_reduce)
    weights = {"w": torch.zeros(2, 2), "b": torch.zeros(()), "v": torch.zeros(3)}
    weights["w"].grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weights["v"].grad = torch.tensor([5.0, 6.0, 7.0])
    assert processes.add_up(weights, 0.5) == 0.5
    assert [one.tolist() for one in sent] == [[0.5, 1.0, 2.0, 3.0, 4.0, 0.0, 5.0, 6.0, 7.0]]
    assert weights["w"].grad.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert weights["b"].grad.item() == 5.0
    assert weights["v"].grad.tolist() == [11.0, 13.0, 15.0]


def test_three_processes_together_take_the_step_that_one_would(monkeypatch, group):
    """Each adds its share of the gradient and the loss, weighted by what its windows count."""
    inputs = np.random.default_rng(0).normal(size=(10, 2))
    windows = windows_of([("a", [Examples(inputs, inputs[:, 0], np.arange(10) > 7)])], 10, memory=10**6, seed=0)
    training = Training(epochs=1, batch_size=99, learning_rate=0.1)

    def stepped(rank, distributed, others):
        added, told = [], []

        def all_reduce(sums):
            added.append(sums.clone())
            sums += others

        monkeypatch.setattr(descent, "TOLD_EVERY", 0.0)
        monkeypatch.setattr(processes.dist, "get_rank", lambda: rank)
        monkeypatch.setattr(processes.dist, "all_reduce", all_reduce)
        monkeypatch.setattr(processes.dist, "broadcast", lambda held, src: None)
        weights = {"w": torch.tensor([0.5, 0.2])}
        found = descent.descend(
            weights,
            lambda x, y: torch.square(x @ weights["w"] - y).mean(),
            ("inputs", "targets"),
            windows,
            training,
            Fitting(distributed=distributed, tell=told.append),
            torch.Generator().manual_seed(1),
            weight=lambda batch: 2.0 * len(batch[0]),
        )
        return found["w"], added, told[-1].loss

    alone, _, loss = stepped(0, False, 0.0)
    parts = [stepped(rank, True, 0.0)[1][0] for rank in range(3)]
    for rank in range(3):
        together, _, their = stepped(rank, True, sum(parts[other] for other in range(3) if other != rank))
        np.testing.assert_allclose(together, alone, rtol=1e-5)
        assert their == pytest.approx(loss, rel=1e-5)


def test_the_loss_that_decides_is_the_first_processes(monkeypatch, group):
    monkeypatch.setattr(processes, "agreed", lambda loss: loss + 1.0)
    windows = windows_of([("a", [Examples(np.ones((2, 1)), np.ones(2), np.ones(2, bool))])], 2, memory=99, seed=0)
    for distributed, expected in ((False, 3.0), (True, 4.0)):
        run = descent._Descent(
            {},
            lambda x: 3.0 * x.mean(),
            ("inputs",),
            windows,
            Training(),
            Fitting(distributed=distributed),
            None,
            None,
            lambda batch: 1.0,
        )
        assert run._agreed_loss() == expected
