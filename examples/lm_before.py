"""A small language model of Python functions, not balanced: ``torchrun --nproc-per-node 2 examples/lm_before.py``."""

import ast
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler


def functions(longest=256):
    """Return functions of Python's standard library, as bytes."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py")):
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        found += [torch.tensor(list(b"".join(lines[node.lineno - 1 : node.end_lineno])[:longest])) for node in nodes]
    return [text for text in found if len(text) > 1]


def collate(texts):
    """Pad inputs, and targets with ignored labels."""
    inputs = pad_sequence([text[:-1] for text in texts], batch_first=True)
    return inputs, pad_sequence([text[1:] for text in texts], batch_first=True, padding_value=-100)


class Model(torch.nn.Module):
    """One causal layer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(256, 64), torch.nn.Embedding(256, 64)
        self.layer = torch.nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0, batch_first=True)
        self.next = torch.nn.Linear(64, 256)

    def forward(self, inputs):
        """Return the logits of the next byte."""
        length = inputs.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        return self.next(self.layer(self.tokens(inputs) + self.places(torch.arange(length)), mask, is_causal=True))


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
dataset = functions()

model = DistributedDataParallel(Model())
sampler = DistributedSampler(dataset, shuffle=True, seed=0)
loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=sampler, collate_fn=collate)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(1):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()

if dist.get_rank() == 0:
    print(f"{loss.item():.2f} nats a byte")
dist.destroy_process_group()
