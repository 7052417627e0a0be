"""An ordinary training script on one process: ``python examples/async_before.py``."""

import torch
from sklearn.datasets import load_digits
from torch.utils import data

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
loader = data.DataLoader(dataset, batch_size=32, shuffle=True)

for _ in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        optimizer.step()

with torch.no_grad():
    right = (network(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
print(f"{right:.1%} of the digits are recognized")
