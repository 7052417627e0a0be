"""Rollouts packed for ranks of unequal speed: ``torchrun --nproc-per-node 2 examples/packed_rollouts.py``.

A custom loop, as in reinforcement learning, where lengths are known only after generation.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import paceline
from paceline.solver import TokenCost, pack

COST = TokenCost(token=1.0, square=1 / 4096)  # or TokenCost.fit(lengths, seconds) with measured micro-batches


def generate(step):
    """Return 48 token sequences of different lengths, the same on all ranks, as gathered after generation."""
    chance = torch.Generator().manual_seed(step)
    lengths = (torch.rand(48, generator=chance) ** 3 * 480 + 20).long().tolist()
    return [torch.randint(64, (length,), generator=chance) for length in lengths]


def collate(rollouts):
    """Return one row of tokens, their positions within the rollouts, and the boundaries of the rollouts."""
    lengths = torch.tensor([len(one) for one in rollouts])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    position_ids = torch.cat([torch.arange(length) for length in lengths.tolist()])
    return torch.cat(rollouts), position_ids, cu_seqlens


class Model(torch.nn.Module):
    """One causal layer over packed rows: attention stays within each rollout."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(64, 64), torch.nn.Embedding(512, 64)
        self.attention, self.next = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, tokens, position_ids, cu_seqlens):
        """Return the logits of the next token."""
        hidden = self.tokens(tokens) + self.places(position_ids)
        mixed = []
        for part in self.attention(hidden).split(cu_seqlens.diff().tolist()):
            query, key, value = part.view(1, len(part), 3, 4, 16).permute(2, 0, 3, 1, 4)
            attended = scaled_dot_product_attention(query, key, value, is_causal=True)
            mixed.append(attended.permute(0, 2, 1, 3).reshape(len(part), 64))
        return self.next(hidden + torch.cat(mixed))


def loss_sum(model, rollouts):
    """Return the sum (not the mean) of the loss over all tokens except the last of each rollout."""
    tokens, position_ids, cu_seqlens = collate(rollouts)
    logits, targets = model(tokens, position_ids, cu_seqlens), tokens.roll(-1)
    targets[cu_seqlens[1:] - 1] = -100
    return cross_entropy(logits, targets, reduction="sum", ignore_index=-100)


def train(steps=12):
    """Train for some steps; rank 0 prints each plan and the share of waiting."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    predictor = paceline.Auto()
    predictor.reset(list(range(world)))
    for step in range(steps):
        rollouts = generate(step)
        lengths = [len(one) for one in rollouts]
        plan = pack(lengths, cap=1024, speeds=predictor.predict().speed, cost=COST)  # micro_batches="lockstep" for FSDP

        count = sum(lengths) - len(lengths)  # loss terms of all ranks: every token has the same weight
        began = time.perf_counter()
        for own in plan.samples_of(rank):
            (loss_sum(model, [rollouts[place] for place in own]) / count).backward()
        if rank == world - 1:
            time.sleep(time.perf_counter() - began)  # makes this rank half as fast: delete it
        seconds = time.perf_counter() - began  # excludes waiting for other ranks

        for parameter in model.parameters():  # sum, not mean: the loss is already divided by the terms of all ranks
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

        every = [None] * world
        dist.all_gather_object(every, seconds)
        predictor.observe(paceline.Report(samples=plan.work, seconds=every))
        if rank == 0:
            waited = 1 - sum(every) / world / max(every)
            work = ", ".join(f"{share:.0%}" for share in plan.work / plan.work.sum())
            print(f"step {step}: work {work}; micro-batches {plan.counts.tolist()}; waited {waited:.0%}", flush=True)
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train()
    dist.destroy_process_group()
