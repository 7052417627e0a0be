"""The script with a custom loader, balanced: ``torchrun --nproc-per-node 2 examples/crops_after.py``."""

import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach

BLOCK, STEPS = 64, 80
"""Bytes per crop of the text; number of steps."""


class Model(torch.nn.Module):
    """One recurrent layer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.layer = torch.nn.Embedding(256, 64), torch.nn.GRU(64, 128, batch_first=True)
        self.next = torch.nn.Linear(128, 256)

    def forward(self, inputs):
        """Return the logits of the next byte."""
        return self.next(self.layer(self.tokens(inputs))[0])


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))
text = torch.tensor(list(b"".join(path.read_bytes() for path in sources)))


def get_batch(starts):
    """Return crops of the text, and the same crops shifted by one byte."""
    return tuple(torch.stack([text[at + late : at + late + BLOCK] for at in starts]) for late in (0, 1))


model = DistributedDataParallel(Model())
loader = BalancedLoader(range(len(text) - BLOCK), global_batch=32, seed=0, collate_fn=get_batch)
attach(model, loader)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for _, (inputs, labels) in zip(range(STEPS), loader, strict=False):
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    print(f"{loss.item():.2f} nats a byte")
dist.destroy_process_group()
