"""One rank of one training loop, compared with one process on the same samples: training_loops.py starts it.

torchrun loop_rank.py OUT NAME
"""

from __future__ import annotations

import os
import sys

if "PACELINE_NCCL" in os.environ:  # NCCL takes two ranks on one card for two hosts; it reads this before torch does
    os.environ.update(NCCL_HOSTID=f"host{os.environ['RANK']}", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    os.environ.update(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo")

import copy
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from place import Place, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import Forecast
from paceline.torch import BalancedLoader, attach

GLOBAL, WIDTH = 48, 32
STEPS = {True: 60, False: 8}
"""Steps of a loop whose sizes must follow speed, and of any other."""

LOOPS: dict[str, dict[str, Any]] = {
    "sizes follow speed": {"follow": True},
    "sizes follow speed, FSDP2": {"follow": True, "fsdp": True},
    "plain": {},
    "momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)},
    "fused AdamW": {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True), "near": 1e-6},
    "clipped": {"clip": 0.05},
    "accumulation": {"accumulate": 2},
    "accumulation under no_sync": {"accumulate": 2, "no_sync": True},
    "workers and pinned memory": {"workers": 2},
    "a batch ahead on a stream of its own": {"ahead": True},
    "evaluation in between": {"evaluate": True},
    "autocast to bfloat16": {"autocast": torch.bfloat16, "dtype": torch.float32, "near": 0.02},
    "float16 and GradScaler": {"autocast": torch.float16, "dtype": torch.float32, "scaler": True, "near": 0.02},
    "activation checkpoints": {"recompute": True},
    "gradients as views of buckets": {"ddp": {"gradient_as_bucket_view": True, "static_graph": True}},
    "torch.compile": {"compile": True},
    "scaled by the loop": {"scaled": True},
    "FSDP2": {"fsdp": True},
    "FSDP2, scaled by the loop": {"fsdp": True, "scaled": True},
    "FSDP2, accumulation": {"fsdp": True, "accumulate": 2},
    "FSDP2, clipped": {"fsdp": True, "clip": 0.05},
    "FSDP2, bfloat16": {"fsdp": True, "bf16": True, "dtype": torch.float32, "near": 0.02},
}
"""The loops, by name. ``near`` is the largest deviation of a parameter, relative to the largest of its tensor."""


class Samples(torch.utils.data.Dataset):
    """Random inputs, and the number of each."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.inputs = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0), dtype=dtype)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.inputs[index], index


class Slow(nn.Module):
    """Takes ten times as long for a sample on every rank but the first."""

    seconds = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Wait, and return the inputs."""
        if self.training:
            time.sleep(self.seconds * len(inputs))
        return inputs


class Restless:
    """A predictor that finds other speeds in every iteration, the same on every rank: sizes never rest."""

    covariate_names, seen = (), 0

    def reset(self, workers: Any) -> None:
        """Begin with these workers."""
        self.workers, self.seen = tuple(workers), 0

    def observe(self, report: Any) -> None:
        """Count an iteration."""
        self.seen += 1

    def predict(self, *, covariates: Any = None, horizon: int = 1) -> Forecast:
        """Draw speeds."""
        count = len(self.workers)
        return Forecast(np.random.default_rng(self.seen).uniform(1, 9, count), np.full(count, 1e-3))

    def state_dict(self) -> dict[str, Any]:
        """Return the iterations seen."""
        return {"seen": np.array(self.seen)}

    def load_state_dict(self, state: Any) -> None:
        """Go on from them."""
        self.seen = int(state["seen"])


class Loop:
    """A training loop by its choices: the same code on several ranks, and alone on the union of their batches."""

    def __init__(self, device: str, follow=False, fsdp=False, dtype=torch.float64, accumulate=1, **choices: Any):
        self.device, self.follow, self.fsdp, self.dtype, self.accumulate = device, follow, fsdp, dtype, accumulate
        self.choices = choices
        torch.manual_seed(0)
        self.bare = nn.Sequential(nn.Linear(WIDTH, 64), Slow(), nn.Tanh(), nn.Linear(64, 4)).to(device, dtype)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer of the model."""
        make = self.choices.get("optimizer", lambda parameters: torch.optim.SGD(parameters, lr=0.05))
        return make(model.parameters())

    def distributed(self) -> nn.Module:
        """Return the model as the ranks train it."""
        if not self.fsdp:
            return DistributedDataParallel(self.bare, **self.choices.get("ddp", {}))
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        low = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.choices.get("bf16") else None
        options = {"mp_policy": low} if low else {}
        for layer in (self.bare[0], self.bare[3]):
            fully_shard(layer, **options)
        return fully_shard(self.bare, **options)

    def step(self, model, optimizer, scaler, inputs_M, scale=None) -> None:
        """Train on the micro-batches of a step; ``scale`` weighs losses by their counts, where the loop does so."""
        choices = self.choices
        optimizer.zero_grad()
        for number, inputs in enumerate(inputs_M):
            quiet = choices.get("no_sync") and number < len(inputs_M) - 1 and hasattr(model, "no_sync")
            with model.no_sync() if quiet else nullcontext():
                loss = self.loss(model, inputs)
                loss = scale(loss, len(inputs)) if scale else loss / len(inputs_M)
                scaler.scale(loss).backward()
        if choices.get("clip"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), choices["clip"])
        scaler.step(optimizer)
        scaler.update()

    def loss(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch."""
        autocast, run = self.choices.get("autocast"), model
        if self.choices.get("recompute"):
            from torch.utils.checkpoint import checkpoint

            inputs = checkpoint(torch.sin, inputs.requires_grad_(), use_reentrant=False)
        with torch.autocast(self.device, autocast) if autocast else nullcontext():
            return run(inputs).float().square().mean() if autocast else run(inputs).square().mean()

    def scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler, enabled where the loop uses one."""
        return torch.amp.GradScaler(self.device, enabled=bool(self.choices.get("scaler")), init_scale=2.0**10)

    def ahead(self, loader):
        """Yield the micro-batches on the device, copied one ahead on a stream of its own where the loop does so."""
        if not self.choices.get("ahead"):
            for inputs, numbers in loader:
                yield inputs.to(self.device, non_blocking=True), numbers
            return
        stream, waiting = torch.cuda.Stream(), None
        for inputs, numbers in loader:
            with torch.cuda.stream(stream):
                copied = inputs.to(self.device, non_blocking=True)
            if waiting is not None:
                yield waiting
            torch.cuda.current_stream().wait_stream(stream)
            waiting = copied, numbers
        yield waiting

    def train(self) -> tuple[nn.Module, list[list[list[int]]]]:
        """Train on the ranks; return the model and the samples of every step's micro-batches on this rank."""
        data = Samples(GLOBAL * self.accumulate * STEPS[self.follow], self.dtype)
        workers = {"num_workers": self.choices["workers"], "pin_memory": True} if "workers" in self.choices else {}
        loader = BalancedLoader(data, global_batch=GLOBAL, accumulate=self.accumulate, seed=0, **workers)
        model = self.distributed()
        options: dict[str, Any] = {}
        if not self.follow:
            options = {"predictor": Restless(), "policy": Policy(warmup=0, change_cost=0, risk=0)}
        balance = attach(model, loader, **options)
        run = torch.compile(model, backend="aot_eager") if self.choices.get("compile") else model
        optimizer, scaler = self.optimizer(model), self.scaler()
        inputs_M, steps = [], []
        for inputs, numbers in self.ahead(loader):
            if not inputs_M:
                steps.append([])
            inputs_M.append(inputs)
            steps[-1].append(numbers.tolist())
            if len(inputs_M) == self.accumulate:
                self.step(run, optimizer, scaler, inputs_M, balance.scale if self.choices.get("scaled") else None)
                inputs_M = []
            if self.choices.get("evaluate"):
                model.eval()
                with torch.no_grad():
                    model(inputs[:3])
                model.train()
        return model, steps

    def alone(self, model: nn.Module, steps_R: list[list[list[list[int]]]]) -> None:
        """Train a copy of the first model on the union of the ranks' batches."""
        data = Samples(GLOBAL * self.accumulate * STEPS[self.follow], self.dtype)
        optimizer, scaler = self.optimizer(model), self.scaler()
        for parts_R in zip(*steps_R, strict=True):
            unions = [[i for part in parts for i in part] for parts in zip(*parts_R, strict=True)]
            inputs_M = [data.inputs[union].to(self.device) for union in unions]
            self.step(model, optimizer, scaler, inputs_M)


def deviation(model: nn.Module, expected: nn.Module) -> float:
    """Return the largest difference of a parameter, relative to the largest of its tensor."""
    worst = 0.0
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        full = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        worst = max(worst, float((full - theirs).abs().max() / theirs.abs().max()))
    return worst


def main() -> None:
    """Run the loop; the first rank writes what became of it."""
    out, name = Path(sys.argv[1]), sys.argv[2]
    # On the stand-in a rank that refused a step lives on, so events must not be late: the others would wait.
    place = Place(latest=0.0003)
    join(place)
    loop = Loop(place.device, **{key: value for key, value in LOOPS[name].items() if key != "near"})
    expected = copy.deepcopy(loop.bare)
    Slow.seconds = (1e-3 if dist.get_rank() else 1e-4) if loop.follow else 0.0
    model, steps = loop.train()
    Slow.seconds = 0.0
    steps_R: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps_R, steps)
    loop.alone(expected, steps_R)
    off = deviation(model, expected)
    seen = sorted(i for steps in steps_R for step in steps for part in step for i in part)
    sizes = [[len(step[0]) for step in parts] for parts in zip(*steps_R, strict=True)]
    if dist.get_rank() == 0:
        every = seen == list(range(GLOBAL * loop.accumulate * STEPS[loop.follow]))
        out.write_text(json.dumps({"off": off, "every": every, "sizes": sizes}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of process groups may otherwise end the process as the interpreter closes
