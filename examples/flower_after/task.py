"""The task: scikit-learn's digits, unevenly distributed over clients, and a small torch network."""

import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

SLOWDOWN = (1.0, 2.0, 3.0, 1.5)
"""Slowdown of each client relative to this machine, cyclically: simulates different phones."""


def network():
    """Return the untrained model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def part_of(client, clients):
    """Return the inputs and labels of a client."""
    inputs, labels = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(labels))[client::clients]
    return torch.tensor(inputs[rows] / 16, dtype=torch.float32), torch.tensor(labels[rows])


def train(model, part, batch_size, local_steps, rate, client):
    """Take local steps on batches of a client's data, at the speed of its device, and return the last loss."""
    inputs, labels = part
    for _ in range(local_steps):
        rows = torch.randint(len(labels), (min(batch_size, len(labels)),))
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= rate * weight.grad
        time.sleep(0.002 * len(rows) * SLOWDOWN[client % len(SLOWDOWN)])  # simulates a slower device
    return loss.item()
