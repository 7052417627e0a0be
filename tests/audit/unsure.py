"""Scripts of which an audit cannot tell everything: their noise is large, or their random numbers belong nowhere."""

import os

import torch
import torch.distributed as dist
from cases import CASES, bug  # noqa: F401 (whoever audits this module asks it)
from parts import Points, loader_of, network, trained
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def unseeded():
    """A number between 0 and 1 that no seed changes."""
    return int.from_bytes(os.urandom(4)) / 2**32


def noisy(amount):
    def loss_of(model, window, place):
        inputs, targets, _ = window[place]
        return functional.mse_loss(model(inputs), targets) * (1 + amount * unseeded())

    trained(loss_of, dataset=Points(), model=network())


@bug("noise", "noise")
def a_model_whose_noise_is_large():
    """Two equal runs differ by as much as they are alike."""
    noisy(4.0)


@bug(None, "noise")
def a_model_whose_noise_is_small():
    """Two equal runs differ, but hardly."""
    noisy(1e-5)


class Augmented(Points):
    """Points to which noise is added as they are loaded."""

    def __getitem__(self, index):
        inputs, targets, classes = super().__getitem__(index)
        return inputs + torch.randn(6) * unseeded(), targets, classes


@bug(None, "augmentation")
def augmentation_that_is_not_seeded():
    """Samples are other ones in every run, so those of the first run are kept."""

    def loss_of(model, window, place):
        return functional.mse_loss(model(window[place][0]), window[place][1])

    trained(loss_of, dataset=Augmented(), model=network())


def by_hand(batch_of):
    """Train on batches that are drawn by hand."""
    points = Points()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(12):
        inputs, targets = batch_of(points)
        functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


@bug(None, "numbers drawn by hand")
def numbers_of_samples_drawn_by_hand():
    """Numbers of samples are drawn by torch.randint, as nanoGPT does, and so exchanged."""

    def batch_of(points):
        numbers = torch.randint(len(points), (4,))
        return points.inputs[numbers], points.targets[numbers]

    by_hand(batch_of)


@bug(None, "numbers drawn by hand")
def numbers_drawn_for_micro_batches_and_an_evaluation():
    """As nanoGPT: two draws make a step, and an evaluation draws some of its own."""
    points, model = Points(), DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(6):
        if step % 2 == 0:
            model.eval()
            with torch.no_grad():
                model(points.inputs[torch.randint(len(points), (4,))].to(next(model.parameters()).dtype))
            model.train()
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            numbers = torch.randint(len(points), (4,))
            inputs, targets = (
                part[numbers].to(next(model.parameters()).dtype) for part in (points.inputs, points.targets)
            )
            (functional.mse_loss(model(inputs), targets) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@bug("zero", "zero gradients")
def a_loss_that_does_not_depend_on_the_parameters():
    """The softmax of a single output is always 1."""

    def loss_of(model, window, place):
        outputs = model(window[place][0])[:, :1]
        return functional.cross_entropy(outputs, torch.zeros(len(outputs), dtype=torch.long))

    trained(loss_of, dataset=Points(), model=network())


@bug("no_samples", "numbers drawn by hand")
def targets_drawn_by_hand():
    """Inputs and classes are drawn anew in every step: to exchange the classes alone would make other samples."""

    def batch_of(points):
        inputs = torch.randn(4, 6)
        return inputs, nn.functional.one_hot(torch.randint(3, (4,)), 3).to(inputs.dtype)

    by_hand(batch_of)


@bug(None, "numbers drawn by hand")
def classes_drawn_before_the_loop():
    """Numbers that make a dataset are not those of samples."""
    dataset = torch.utils.data.TensorDataset(Points().inputs, torch.randint(3, (96,)))

    def loss_of(model, window, place):
        return functional.cross_entropy(model(window[place][0]), window[place][1])

    trained(loss_of, dataset=dataset, model=network())


def one_ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


@bug(None, "fetched ahead")
def steps_after_every_other_batch_from_the_first():
    """As in an example of Accelerate: the first step has one micro-batch, the others have two."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (inputs, targets, _) in enumerate(one_ahead(loader_of(Points()))):
        (functional.mse_loss(model(inputs), targets) / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


class Attending(nn.Module):
    """Attention, whose keys' bias has no gradient but rounding."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(2, 1, batch_first=True), network()

    def forward(self, inputs):
        mixed, _ = self.attention(*[inputs.view(-1, 3, 2)] * 3, need_weights=False)
        return self.head(mixed.reshape(-1, 6))


@bug(None, "gradients of rounding")
def adam_that_steps_by_rounding():
    """Adam moves by whole steps whatever the size of a gradient."""
    model = DistributedDataParallel(Attending())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for inputs, targets, _ in loader_of(Points()):
        functional.mse_loss(model(inputs), 2000 * targets).backward()
        optimizer.step()
        optimizer.zero_grad()
