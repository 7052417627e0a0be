"""One rank of a job whose samples cost the ranks different times: item_cost.py starts it.

torchrun item_rank.py OUT WHERE ..., with WHERE one of item, loop and forward. Each
job runs with equal batches, then attached.
"""

from __future__ import annotations

import os
import sys

if "PACELINE_NCCL" in os.environ:  # as in loop_rank.py
    os.environ.update(NCCL_HOSTID=f"host{os.environ['RANK']}", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    os.environ.update(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo")

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from place import Place, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach

COST = (0.3e-3, 0.6e-3)
"""Seconds that a sample costs each rank."""

GLOBAL, STEPS = 128, 80


class Samples(torch.utils.data.Dataset):
    """Random inputs, each of which may take its time."""

    def __init__(self, seconds: float) -> None:
        self.inputs, self.seconds = torch.randn(GLOBAL * STEPS, 256), seconds

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self.inputs[index]


class Slow(nn.Module):
    """Takes its time for every sample."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Wait, and return the inputs."""
        time.sleep(self.seconds * len(inputs))
        return inputs


def trained(device: str, where: str, attached: bool) -> dict[str, object]:
    """Train; return how long it took, and the sizes of the last step."""
    torch.manual_seed(0)
    cost = COST[dist.get_rank()]
    layers = [nn.Linear(256, 1024), Slow(cost * (where == "forward")), nn.ReLU(), nn.Linear(1024, 1)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    loader = BalancedLoader(Samples(cost * (where == "item")), global_batch=GLOBAL, seed=0)
    balance = attach(model, loader) if attached else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes, began = [], time.perf_counter()
    for inputs in loader:
        sizes = [int(size) for size in loader.batch_sizes]
        if where == "loop":
            time.sleep(cost * len(inputs))
        optimizer.zero_grad()
        model(inputs.to(device, non_blocking=True)).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    if balance is not None:
        balance.close()
    return {"where": where, "attached": attached, "seconds": took, "sizes": sizes}


def main() -> None:
    """Train each job; the first rank writes what became of those that are done."""
    out, *places = sys.argv[1:]
    place, seen = Place(), []
    join(place)
    for where in places:
        for attached in (False, True):
            seen.append(trained(place.device, where, attached))
            if dist.get_rank() == 0:
                Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of process groups may otherwise end the process as the interpreter closes
