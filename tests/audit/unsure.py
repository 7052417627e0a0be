"""Scripts of which an audit cannot tell everything: their noise is large, or their random numbers belong nowhere."""

import os

import torch
from cases import CASES, bug  # noqa: F401 (whoever audits this module asks it)
from parts import Points, network, trained
from torch import nn
from torch.nn import functional


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


class Deep(nn.Module):
    """Layers that are left out at random, for the whole batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        left = torch.rand(len(inputs), 1) < 0.5
        return self.second(inputs + left * self.first(inputs))


@bug("chance", "stochastic depth")
def stochastic_depth():
    """Random numbers are drawn for a place in the batch, so a sample has others when it is elsewhere."""

    def loss_of(model, window, place):
        return functional.mse_loss(model(window[place][0]), window[place][1])

    trained(loss_of, dataset=Points(), model=Deep())


@bug(None, "dropout")
def dropout():
    """Dropout is switched off, so its random numbers do not matter."""

    def loss_of(model, window, place):
        return functional.mse_loss(model(window[place][0]), window[place][1])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    trained(loss_of, dataset=Points(), model=model)


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
