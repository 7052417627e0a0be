"""The same training script, balanced: ``torchrun --nproc-per-node 2 examples/ddp_after.py``."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from paceline.torch import BalancedLoader, attach

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(network)
loader = BalancedLoader(dataset, global_batch=256, shuffle=True, seed=0)
attach(model, loader)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(10):
    loader.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()

with torch.no_grad():
    right = (network(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
if dist.get_rank() == 0:
    print(f"{right:.1%} of the digits are recognized")
dist.destroy_process_group()
