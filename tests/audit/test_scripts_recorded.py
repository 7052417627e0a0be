"""What a script does under audit, and what of it is recorded: loaders, rows drawn by hand, losses and steps."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from paceline.audit.comparisons import AuditPlan
from paceline.audit.inside.begin import recorded
from paceline.audit.tape import load_all

F = nn.functional


@pytest.fixture
def taped(tmp_path):
    """Record a script, and return the only rank's tape."""

    def run(work, rank=0, **plan):
        with recorded(AuditPlan(**{"steps": 99, "precision": "float32", **plan}), tmp_path, rank):
            work()
        (tape,) = load_all(tmp_path)
        return tape

    return run


def stepping(work):
    """A script that takes one step after its work."""

    def run():
        weight = nn.Parameter(torch.ones(1))
        work()
        weight.grad = torch.ones(1)
        torch.optim.SGD([weight], lr=0.1).step()

    return run


def test_a_script_has_no_dropout_and_what_it_does_not_seed_is_seeded(taped):
    seen = []

    def work():
        seen.append((random.random(), float(torch.rand(1)), np.random.rand(), np.random.default_rng().random()))  # noqa: NPY002
        assert torch.equal(nn.Dropout(0.9)(torch.ones(50)), torch.ones(50))
        layer, rows = nn.GRU(2, 3, num_layers=2, dropout=0.9), torch.ones(4, 1, 2)
        own = layer(rows)[0]
        assert layer.dropout == 0.9
        assert torch.equal(own, layer.eval()(rows)[0])

    taped(stepping(work), rank=3)
    seed = 23  # 20, and the number of the rank
    random.seed(seed)
    torch.manual_seed(seed)
    known = (
        random.random(),
        float(torch.rand(1)),
        np.random.RandomState(seed).rand(),
        np.random.default_rng(seed).random(),
    )
    assert seen == [known]
    assert not torch.equal(nn.Dropout(0.9)(torch.ones(50)), torch.ones(50))


class Rows:
    """Five rows; asked for together where it has ``__getitems__``."""

    def __len__(self):
        return 5

    def __getitem__(self, number):
        return torch.tensor([float(number)])


class Together(Rows):
    """Rows that are loaded together."""

    asked = ()

    def __getitem__(self, number):
        raise AssertionError("asked for one row")

    def __getitems__(self, numbers):
        self.asked = (*self.asked, numbers)
        return (torch.tensor([10.0 * number]) for number in numbers)


class Endless(IterableDataset):
    """Numbers, one after the other."""

    def __iter__(self):
        return iter(torch.arange(3.0))


@pytest.mark.slow
def test_every_kind_of_loader_hands_out_what_torch_does_and_is_recorded(taped):
    together, found = Together(), {}
    names = {"plain": Rows(), "together": together, "single": Rows(), "stream": Endless(), "none": Rows()}

    def work():
        options = {"single": {"batch_size": None}, "stream": {"batch_size": None}}
        for name, data in names.items():
            loader = DataLoader(data, **options.get(name, {"batch_size": 2}))
            with torch.set_grad_enabled(name != "none"):
                found[name] = [batch.flatten().tolist() for batch in loader]
        again = DataLoader(names["plain"], batch_size=5)
        for _ in range(2):
            assert len(list(again)) == 1

    tape = taped(stepping(work))
    assert found["plain"] == found["none"] == [[0, 1], [2, 3], [4]]
    assert found["together"] == [[0, 10], [20, 30], [40]]
    assert together.asked == ([0, 1], [2, 3], [4])
    assert found["single"] == [[0], [1], [2], [3], [4]]
    assert found["stream"] == [[0], [1], [2]]
    sizes = {name: [len(batch) for batch in batches] for name, batches in tape.streams.items()}
    assert sizes == {
        "Rows 0": [2, 2, 1],
        "Together 1": [2, 2, 1],
        "Rows 2": [1] * 5,
        "Endless 3": [1] * 3,
        "Rows 4": [5, 5],
    }
    assert tape.facts["lengths"] == {"Rows 0": 3, "Together 1": 3, "Rows 2": 5, "Endless 3": 0, "Rows 4": 1}
    assert "samplers" not in tape.facts


@pytest.mark.slow
def test_the_orders_of_distributed_samplers_are_noted(taped):
    def work():
        one = DistributedSampler(Rows(), num_replicas=2, rank=1, shuffle=False, seed=7)
        other = DistributedSampler(Rows(), num_replicas=3, rank=0, shuffle=True, seed=8)
        other.set_epoch(4)
        list(DataLoader(Rows(), sampler=one))
        list(DataLoader(Rows(), batch_sampler=BatchSampler(other, 2, drop_last=False)))
        list(DataLoader(Rows(), batch_size=None, sampler=one))
        list(DataLoader(Rows(), sampler=RandomSampler(Rows())))

    found = taped(stepping(work)).facts["samplers"]
    assert found == {"Rows 0": [2, 1, False, 7, 0], "Rows 1": [3, 0, True, 8, 4], "Rows 2": [2, 1, False, 7, 0]}


def test_rows_of_whole_numbers_that_a_script_draws_to_train_on_are_samples(taped):
    kinds = []

    def work():
        drawn = torch.randint(50, (3,), dtype=torch.int32)
        kinds.append((drawn.dtype, type(drawn), len(drawn), bool(((drawn >= 0) & (drawn < 50)).all())))
        torch.randint(5, 9, size=(2,))
        torch.randint(5, (2, 2))
        torch.randint(5, ())
        torch.randint(5, (4,), generator=torch.Generator())
        with torch.no_grad():
            torch.randint(5, (6,))
        assert torch.randint.__name__ == "randint"

    tape = taped(stepping(work))
    assert kinds == [(torch.int32, torch.Tensor, 3, True)]
    sizes = {name: [len(batch) for batch in batches] for name, batches in tape.streams.items()}
    assert sizes == {"torch.randint (50, (3,)) ['dtype']": [3], "torch.randint (5, 9) ['size']": [2]}


def test_rows_drawn_by_a_script_that_has_a_loader_are_none_and_draws_beside_rows_are_noted(taped):
    def work():
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.ones(1)
        for number in range(3):
            if number == 2:
                torch.rand(1)
            torch.randint(5, (2,))
            optimizer.step()
        list(DataLoader(Rows(), batch_size=5))
        torch.randint(5, (3,))
        optimizer.step()

    tape = taped(work)
    assert list(tape.streams) == ["torch.randint (5, (2,)) []", "Rows 0"]
    assert [step.facts.get("beside", False) for step in tape.steps] == [False, False, True, False]


def test_a_step_that_is_given_a_closure_has_the_gradients_of_its_closure(taped):
    def work():
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def closure():
            weight.grad = torch.full((1,), 7.0)
            return 1.0

        for arguments, options in (((), {}), ((closure,), {}), ((), {"closure": closure}), ((None,), {})):
            weight.grad = torch.full((1,), 3.0)
            optimizer.step(*arguments, **options)

    assert [step.gradients["parameter 0"].tolist() for step in taped(work).steps] == [[3], [7], [7], [3]]


def test_a_loss_is_told_relative_to_the_means_that_it_is_made_of(taped):
    def work():
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        list(model.named_parameters())
        model.weight.data[:] = 2.0
        rows, zeros = torch.ones(4, 1), torch.zeros(4, 1)

        def means():
            return F.mse_loss(model(rows), zeros) + F.l1_loss(model(rows), zeros)  # 4 and 2

        (means() / 3).backward()
        (F.mse_loss(model(rows), zeros, reduction="none").sum() / 2).backward()  # no mean
        F.mse_loss(rows, zeros)  # without a gradient
        F.l1_loss(model(rows), zeros).mul(5).backward()
        means()
        model(rows).backward(torch.ones(4, 1))  # no single number: what was seen is forgotten
        model(rows).mean().backward()
        F.smooth_l1_loss(model(zeros), zeros).backward()
        optimizer.step()
        optimizer.zero_grad()
        F.huber_loss(model(rows), zeros).backward(retain_graph=True)
        optimizer.step()

    first, second = taped(work).steps
    assert first.facts["ratio"][:2] == pytest.approx([1 / 3, 5])
    assert np.isnan(first.facts["ratio"][2:]).tolist() == [True]
    assert first.facts["kept"] == [1.0]
    assert second.facts == {"ratio": [1.0], "kept": [1.0]}


@pytest.mark.parametrize(
    "name", ["cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy"]
)
def test_means_of_every_kind_are_seen(taped, name):
    def work():
        weight = nn.Parameter(torch.full((2, 3), 0.25))
        targets = torch.tensor([0, 2]) if name in ("cross_entropy", "nll_loss") else torch.full((2, 3), 0.5)
        getattr(F, name)(weight, targets).mul(0.5).backward()
        torch.optim.SGD([weight], lr=0.1).step()

    assert taped(work).steps[0].facts["ratio"] == [0.5]
