"""An ordinary data-parallel training script: ``torchrun --nproc-per-node 2 examples/ddp_before.py``."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(network)
sampler = data.DistributedSampler(dataset, shuffle=True, seed=0)
loader = data.DataLoader(dataset, batch_size=256 // dist.get_world_size(), sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(10):
    sampler.set_epoch(epoch)
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
