"""A balanced training script that logs metrics: ``torchrun --nproc-per-node 2 examples/watched.py run.jsonl``.

In a second terminal: ``paceline watch run.jsonl``. Each rank has its own core, so load on one core slows
one rank: try ``taskset -c 1 yes > /dev/null``.
"""

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from paceline.recording import sinks
from paceline.torch import BalancedLoader, attach

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
digits = load_digits()
dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

layers = [
    torch.nn.Linear(64, 768),
    torch.nn.ReLU(),
    torch.nn.Linear(768, 768),
    torch.nn.ReLU(),
    torch.nn.Linear(768, 10),
]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
loader = BalancedLoader(dataset, global_batch=512, shuffle=True, seed=0)
balance = attach(model, loader, workers=[f"rank {rank}" for rank in range(dist.get_world_size())])
balance.on_iteration.extend(sinks(*sys.argv[1:]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(200):
    loader.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
