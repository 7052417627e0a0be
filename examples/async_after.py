"""The same training script, asynchronous: ``torchrun --nproc-per-node 2 examples/async_after.py``."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.utils import data

from paceline.parameter_server import AsyncJob

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
job = AsyncJob(network, optimizer, dataset, batch=32, epochs=10)

for inputs, targets in job:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(inputs), targets)
    loss.backward()
    job.push()

with torch.no_grad():
    right = (network(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
print(f"{right:.1%} of the digits are recognized")
dist.destroy_process_group()
