"""Training on Ray Train: ``python examples/ray_before.py``."""

import ray.train.torch
import torch
from sklearn.datasets import load_digits
from torch.utils import data


def train():
    """Train on one worker of the job."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    dataset = data.TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = ray.train.torch.prepare_model(network)
    batch_size = 256 // ray.train.get_context().get_world_size()
    loader = ray.train.torch.prepare_data_loader(data.DataLoader(dataset, batch_size, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

    with torch.no_grad():
        right = (network(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
    if ray.train.get_context().get_world_rank() == 0:
        print(f"{right:.1%} of the digits are recognized")


scaling = ray.train.ScalingConfig(num_workers=2)
ray.train.torch.TorchTrainer(train, scaling_config=scaling).fit()
