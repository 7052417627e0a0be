"""A script as the tutorial of torch's DistributedDataParallel has it: a Trainer class, snapshots, torchrun."""

import os
import sys

import torch
import torch.nn.functional as F  # noqa: N812 - as public scripts have it
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Random(Dataset):
    """Random inputs and targets."""

    def __init__(self, size):
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    """Trains a model, and writes snapshots."""

    def __init__(self, model, data, optimizer, save_every):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.data, self.optimizer, self.save_every = data, optimizer, save_every
        self.model = DistributedDataParallel(model)

    def run_batch(self, source, targets):
        """Take one step."""
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        """Train for some epochs."""
        for epoch in range(epochs):
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self.run_batch(source, targets)
            if self.rank == 0 and epoch % self.save_every == 0 and len(sys.argv) > 1:
                torch.save(self.model.module.state_dict(), sys.argv[1])


def main():
    init_process_group(backend="gloo")
    dataset = Random(2048)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=32, pin_memory=False, shuffle=False, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, save_every=10).train(3)
    destroy_process_group()


if __name__ == "__main__":
    main()
