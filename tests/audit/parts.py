"""What the small scripts of the corpus share: data with tokens, a model of tokens, and a plain loop."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

IGNORED = -100


class Texts(torch.utils.data.Dataset):
    """Rows of twelve tokens, of which different numbers count."""

    def __init__(self, count=96, length=12):
        chance = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(20, (count, length), generator=chance)
        self.labels = torch.randint(20, (count, length), generator=chance)
        for row, first in enumerate(torch.randint(0, length - 1, (count,), generator=chance).tolist()):
            self.labels[row, :first] = IGNORED

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


class Points(torch.utils.data.Dataset):
    """Inputs, targets and a class."""

    def __init__(self, count=96):
        chance = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(count, 6, generator=chance)
        self.targets = torch.randn(count, 3, generator=chance)
        self.classes = torch.randint(3, (count,), generator=chance)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index], self.classes[index]


def language_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 20))


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def ranks():
    return dist.get_world_size()


def loader_of(dataset, batch_size=4, sampler=None, **options):
    sampler = sampler or DistributedSampler(dataset, seed=0)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, **options)


def total(tensor):
    """Return the sum over the ranks."""
    found = tensor.detach().clone().double()
    dist.all_reduce(found)
    return found


def counted(batch):
    """Return how many tokens of a batch count."""
    return (batch[1] != IGNORED).sum()


def summed_loss(model, tokens, labels):
    return nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def token_mean(model, tokens, labels):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def trained(loss_of, *, dataset=None, model=None, accumulate=1, epochs=1, rate=0.1, loader=None):
    """Train with the loss of a window of micro-batches: ``loss_of(model, window, place)``."""
    dataset = dataset or Texts()
    model = DistributedDataParallel(model or language_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        window = []
        for batch in loader() if loader else loader_of(dataset):
            window.append(batch)
            if len(window) < accumulate:
                continue
            optimizer.zero_grad()
            for place in range(accumulate):
                loss_of(model, window, place).backward()
            optimizer.step()
            window = []
