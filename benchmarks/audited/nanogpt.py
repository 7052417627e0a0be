"""A script as nanoGPT's: batches drawn by torch.randint, fetched ahead; micro-batches; a flag that sums gradients."""

import os
from contextlib import nullcontext

import numpy as np
import torch
from gpt import BLOCK, GPT, WORDS
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

gradient_accumulation_steps = 4
batch_size = 8
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    seed_offset = int(os.environ["RANK"])
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    seed_offset = 0
torch.manual_seed(1337 + seed_offset)
ctx = nullcontext()
data = np.random.default_rng(0).integers(0, WORDS, 4096).astype(np.uint16)


def get_batch():
    """Return crops of the text, and the same one character later."""
    ix = torch.randint(len(data) - BLOCK, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    """Return the mean loss of a few batches."""
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(3)]
    model.train()
    return sum(losses) / len(losses)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
raw = model
if ddp:
    model = DistributedDataParallel(model)

X, Y = get_batch()
for iteration in range(30):
    if iteration == 0 and seed_offset == 0:
        master, model = model, raw
        estimate_loss()
        model = master
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
if ddp:
    destroy_process_group()
