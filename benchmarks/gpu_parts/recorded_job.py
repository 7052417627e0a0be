"""A plain job of two ranks on one card, to be recorded: recording.py starts it. It knows nothing of the library."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(device: str, steps: int) -> None:
    """Train so many steps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = 256 if device == "cuda" else 4
    data = torch.utils.data.TensorDataset(torch.randn(size * steps, 3, 32, 32), torch.randint(10, (size * steps,)))
    for images, labels in torch.utils.data.DataLoader(data, batch_size=size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    os._exit(0)
