"""Live worlds that no model of ours made: two ranks whose time lies anywhere in the loop. Axes: T iterations, W ranks.

A world says what a sample and an iteration cost each rank, where in the loop that time is spent, and how: asleep, or in
matrix products or compression. :class:`Job` trains in it, plain or attached.
"""

from __future__ import annotations

import functools
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._arrays import Array

FEATURES = 32
PLACES = ("item", "body", "forward", "backward", "metrics")
"""Where the time of samples may lie: ``__getitem__``, the loop before the forward pass, and after the step."""

FIXED_PLACES = ("body", "forward", "backward", "optimizer")
WORK = ("sleep", "matrix", "zlib")
CHANGES = ("steady", "noise", "outliers", "drift", "bursts")
PAUSES = ("none", "log", "evaluation", "checkpoint")


@dataclass(frozen=True)
class World:
    """One world of two ranks.

    Parameters
    ----------
    place, fixed_place
        Where the time of samples, and that of an iteration, is spent.
    work
        How it is spent.
    slow
        What is slow on the second rank: its ``samples``, a fixed ``delay``, ``both``, or ``nothing``.
    slower
        How many times as long an equal batch takes the second rank.
    fixed
        Share of the first rank's iteration that does not depend on its samples.
    change
        How costs change: see :data:`CHANGES`.
    pause
        What stops the loop now and then: a ``log`` of one iteration's length every tenth, on the first rank; an
        ``evaluation`` of ten iterations every 40th, on both; a ``checkpoint`` of five every 50th, on the first.
    processes
        Loading processes of each rank.
    milliseconds
        What an equal batch takes the first rank.
    """

    place: str = "forward"
    fixed_place: str = "forward"
    work: str = "sleep"
    slow: str = "samples"
    slower: float = 2.0
    fixed: float = 0.0
    change: str = "steady"
    pause: str = "none"
    processes: int = 0
    milliseconds: float = 10.0
    share: int = 32
    iterations: int = 200
    seed: int = 0

    @property
    def steady(self) -> bool:
        """Whether one split is the best all the time."""
        return self.change in ("steady", "noise", "outliers")

    def costs(self) -> tuple[Array, Array]:
        """Return the seconds of a sample, and of an iteration beside its samples, ``[T, W]`` each."""
        chance, whole = np.random.default_rng(self.seed), self.milliseconds / 1e3
        sample_W = np.full(2, (1 - self.fixed) * whole / self.share)
        fixed_W = np.full(2, self.fixed * whole)
        if self.slow in ("samples", "both"):
            sample_W[1] *= self.slower
        if self.slow == "both":
            fixed_W[1] *= self.slower
        if self.slow == "delay":
            fixed_W[1] += (self.slower - 1) * whole
        factor_TW = np.ones((self.iterations, 2))
        if self.change == "noise":
            factor_TW = chance.lognormal(0.0, 0.1, factor_TW.shape)
        elif self.change == "outliers":
            factor_TW[chance.random(factor_TW.shape) < 0.02] = 4.0
        elif self.change == "drift":
            factor_TW[:, 0] = np.linspace(1.0, 2.0, self.iterations)
        elif self.change == "bursts":
            slow = False
            for iteration in range(self.iterations):
                slow = chance.random() < (29 / 30 if slow else 1 / 60)
                factor_TW[iteration, 1] = 3.0 if slow else 1.0
        return factor_TW * sample_W, factor_TW * fixed_W

    def pauses(self) -> Array:
        """Return the seconds of pauses after every iteration, ``[T, W]``."""
        whole, pause_TW = self.milliseconds / 1e3, np.zeros((self.iterations, 2))
        if self.pause == "log":
            pause_TW[9::10, 0] = whole
        elif self.pause == "evaluation":
            pause_TW[39::40] = 10 * whole
        elif self.pause == "checkpoint":
            pause_TW[49::50, 0] = 5 * whole
        return pause_TW

    def seconds(self, sizes_TW: Array, work_factor_W: Array | float = 1.0) -> Array:
        """Return what every iteration takes at these sizes by the imposed costs, ``[T]``.

        Work took ``work_factor_W`` times as long as it was timed at beforehand.
        """
        sample_TW, fixed_TW = (work_factor_W * costs_TW for costs_TW in self.costs())
        loading_TW = sizes_TW * sample_TW
        if self.place == "item" and self.processes and self.work == "sleep":
            own_TW = np.maximum(fixed_TW, loading_TW / self.processes)
        else:  # loading processes that compute share a core with their rank
            own_TW = fixed_TW + loading_TW
        seconds_T: Array = (own_TW + work_factor_W * self.pauses()).max(axis=1)
        return seconds_T

    def equal(self, work_factor_W: Array | float = 1.0) -> Array:
        """Return what every iteration takes with equal batches, ``[T]``."""
        return self.seconds(np.full((self.iterations, 2), self.share), work_factor_W)

    def oracle(self, work_factor_W: Array | float = 1.0) -> Array:
        """Return what every iteration takes with the best sizes for costs that are known, ``[T]``.

        One split for all iterations if the world is steady.
        """
        every = [np.tile([x, 2 * self.share - x], (self.iterations, 1)) for x in range(1, 2 * self.share)]
        seconds_XT = np.stack([self.seconds(sizes_TW, work_factor_W) for sizes_TW in every])
        return seconds_XT[seconds_XT.sum(axis=1).argmin()] if self.steady else seconds_XT.min(axis=0)


def random_world(seed: int) -> World:
    """Return a world drawn at random; the same for the same seed."""
    chance = np.random.default_rng(seed)

    def pick(among: Any, odds: Any = None) -> Any:
        return among[int(chance.choice(len(among), p=odds))]

    place, work = pick(PLACES), pick(WORK, [0.5, 0.25, 0.25])
    processes = pick((0, 1, 2)) if place == "item" else 0
    world: dict[str, Any] = {
        "place": place,
        "fixed_place": pick(FIXED_PLACES),
        "work": work,
        "slow": pick(("samples", "delay", "both", "nothing"), [0.4, 0.25, 0.2, 0.15]),
        "slower": pick((1.5, 2.0, 3.0)),
        "fixed": pick((0.0, 0.3, 0.6, 0.8, 0.95)),
        # What loading processes load ahead cannot follow the iterations of this process.
        "change": pick(CHANGES, [0.4, 0.2, 0.1, 0.15, 0.15]) if not processes else "steady",
        "pause": pick(PAUSES, [0.55, 0.15, 0.15, 0.15]),
        "processes": processes,
        "milliseconds": float(chance.uniform(8, 16)),
        "seed": seed,
    }
    return World(**world)


class Worker:
    """Spends time: asleep, or in work that was timed beforehand; sums over calls are right.

    Attributes
    ----------
    due_seconds, work_seconds
        What was to be spent in work, and what it took: a core that others share is slower, or faster, than when it was
        timed.
    """

    def __init__(self, work: str) -> None:
        self.work, self.unit, self._rest = work, _unit_seconds(work), 0.0
        self.due_seconds = self.work_seconds = 0.0

    def spend(self, seconds: float) -> None:
        """Spend this time."""
        self._rest += seconds / self.unit
        if self.work == "sleep":
            if self._rest > 5e-4:  # what a sleep takes too long, the next ones are shorter
                began = time.perf_counter()
                time.sleep(self._rest)
                self._rest -= time.perf_counter() - began
            return
        units, began = int(self._rest), time.perf_counter()
        for _ in range(units):
            _UNITS[self.work]()
        self._rest -= units
        self.due_seconds += units * self.unit
        self.work_seconds += time.perf_counter() - began


_MATRIX = np.random.default_rng(0).random((64, 64), dtype=np.float32)
_TEXT = np.random.default_rng(0).integers(0, 16, 4096, dtype=np.uint8).tobytes()
_UNITS: dict[str, Callable[[], object]] = {
    "matrix": lambda: _MATRIX @ _MATRIX,
    "zlib": lambda: zlib.compress(_TEXT, 1),
}
"""The smallest pieces of work that computes."""


@functools.cache
def _unit_seconds(work: str) -> float:
    """Return what a unit of work takes in this process; measured once, so both jobs of a world do the same work."""
    if work == "sleep":
        return 1.0
    times = []
    for _ in range(3000):
        began = time.perf_counter()
        _UNITS[work]()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


class Training(ABC):
    """A training of two ranks, plain with equal batches or attached; `spend` says what time is spent in its loop.

    It is called in each place: ``item`` (a sample's ``__getitem__``), ``body``, ``forward``, ``backward``,
    ``optimizer`` and ``metrics``, with the samples that are there.
    """

    def __init__(self, rank: int, share: int, samples: int, *, attached: bool, processes: int = 0) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler

        torch.manual_seed(0)
        self.model = DistributedDataParallel(_network(self.spend))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = _dataset(self.spend, samples)
        options = {"num_workers": processes, "multiprocessing_context": "fork"} if processes else {}
        self.balance: Any = None
        if attached:
            from paceline.torch import BalancedLoader, attach

            self.loader: Any = BalancedLoader(data, 2 * share, **options)
            self.balance = attach(self.model, self.loader)
        else:
            sampler: Any = DistributedSampler(data, 2, rank)
            self.loader = DataLoader(data, share, sampler=sampler, **options)
        self._batches: Any = self._forever()

    @abstractmethod
    def spend(self, place: str, samples: int) -> None:
        """Spend what is due at this place of the loop."""

    def step(self) -> None:
        """Train one iteration."""
        inputs = next(self._batches)
        self.spend("body", len(inputs))
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.spend("optimizer", len(inputs))
        self.optimizer.step()
        self.spend("metrics", len(inputs))

    def close(self) -> None:
        """Let go of the loading processes and of the balance."""
        if self.balance is not None:
            self.balance.close()
        # The dataset refers to this job: a loader that were left to the garbage collector would end its processes, for
        # which torch waits five seconds each, in the middle of the next world.
        self._batches = self.loader = self.balance = None

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader


class Job(Training):
    """A training in a world.

    Attributes
    ----------
    sizes_TW
        Sizes of every iteration so far.
    wall_seconds
        What every call of :meth:`train` took.
    """

    def __init__(self, world: World, rank: int, *, attached: bool) -> None:
        self.world, self.iteration = world, 0
        self.sizes_TW: list[list[int]] = []
        self.wall_seconds: list[float] = []
        self.worker = Worker(world.work)
        self.sample_T, self.fixed_T = (costs_TW[:, rank].tolist() for costs_TW in world.costs())
        self.pause_T = world.pauses()[:, rank].tolist()
        samples = 2 * world.share * (1 + world.iterations)
        super().__init__(rank, world.share, samples, attached=attached, processes=world.processes)

    def spend(self, place: str, samples: int) -> None:
        """Spend what is due at this place of the loop."""
        seconds = samples * self.sample_T[self.iteration] if place == self.world.place else 0.0
        if place == self.world.fixed_place:
            seconds += self.fixed_T[self.iteration]
        if seconds:
            self.worker.spend(seconds)

    def train(self, iterations: int) -> None:
        """Train for so many iterations, which the ranks begin together."""
        import torch.distributed as dist

        dist.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            self.step()
            self.sizes_TW.append(self.loader.batch_sizes.tolist() if self.balance else [self.world.share] * 2)
            if self.pause_T[self.iteration]:
                self.worker.spend(self.pause_T[self.iteration])
            self.iteration = min(self.iteration + 1, self.world.iterations - 1)
        dist.barrier()
        self.wall_seconds.append(time.perf_counter() - began)


def _dataset(spend: Callable[[str, int], None], samples: int) -> Any:
    """Return a dataset whose samples may take time to load."""
    import torch

    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        inputs = torch.randn(256, FEATURES)

        def __len__(self) -> int:
            return samples

        def __getitem__(self, number: int) -> Any:
            spend("item", 1)
            return self.inputs[number % 256]

    return Samples()


def _network(spend: Callable[[str, int], None]) -> Any:
    """Return a small network whose passes may take time."""
    import torch

    class InBackward(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, outputs: Any) -> Any:
            context.samples = len(outputs)
            return outputs.clone()

        @staticmethod
        def backward(context: Any, gradients: Any) -> Any:
            spend("backward", context.samples)
            return gradients

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

        def forward(self, inputs: Any) -> Any:
            spend("forward", len(inputs))
            return InBackward.apply(self.layers(inputs))

    return Network()
