"""A small job that runs twice: balanced on several ranks, and alone in one process on the same global batches.

A loop shape is written once, against this job, and knows nothing of which of the two it is.
"""

import dataclasses
import os
import warnings
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import Forecast
from paceline.torch import BalancedLoader, Costs, StreamLoader, attach

SAMPLES, GLOBAL_BATCH, EPOCHS = 103, 24, 2
LONGEST = 7
FREE = Policy(warmup=0, change_cost=0, risk=0)
DEVICE = os.environ.get("PACELINE_LOOPS_DEVICE", "cpu")


class Restless:
    """A predictor to which the workers seem to have other speeds in every iteration, the same on every rank."""

    covariate_names = ()
    seen = 0

    def reset(self, workers):
        self.workers = tuple(workers)
        self.seen = 0

    def join(self, worker):
        self.workers = (*self.workers, worker)

    def leave(self, worker):
        self.workers = tuple(other for other in self.workers if other != worker)

    def observe(self, report):
        self.seen += 1

    def predict(self, *, covariates=None, horizon=1):
        count = len(self.workers)
        return Forecast(np.random.default_rng(self.seen).uniform(1, 9, count), np.full(count, 1e-3))

    def state_dict(self):
        return {"seen": np.array(self.seen)}

    def load_state_dict(self, state):
        self.seen = int(state["seen"])


class Samples(torch.utils.data.Dataset):
    """Inputs, targets, and the number of the sample."""

    def __init__(self, classes=0, count=SAMPLES):
        chance = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 6, generator=chance, dtype=torch.float64).to(DEVICE)
        self.targets = torch.randn(count, 3, generator=chance, dtype=torch.float64).to(DEVICE)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index], index


class Sequences(torch.utils.data.Dataset):
    """Sequences of tokens with their labels, of which most are ignored; many sequences have no others."""

    def __init__(self):
        chance = np.random.default_rng(0)  # no global batch is without any, as alone that would be 0 / 0
        self.lengths = chance.integers(1, LONGEST + 1, SAMPLES)
        self.inputs = torch.tensor(chance.normal(size=(SAMPLES, LONGEST, 6)))
        counts = (chance.random((SAMPLES, LONGEST)) < 0.6) & (np.arange(LONGEST) < self.lengths[:, None])
        counts &= chance.random((SAMPLES, 1)) < 0.35
        self.labels = torch.tensor(np.where(counts, chance.integers(0, 3, counts.shape), -100))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index], index


class Recording:
    """Remembers the samples of every batch of every loop."""

    def __iter__(self):
        loop, begun = [], False
        self.loops.append(loop)
        for batch in super().__iter__():
            loop[-1:] = [loop[-1] + batch[-1].tolist()] if begun else [*loop[-1:], batch[-1].tolist()]
            begun = not self.step_ends  # the micro-batches of a step are one batch of the run alone
            yield moved(batch)


class Recorded(Recording, BalancedLoader):
    """A loader that remembers."""


class RecordedStream(Recording, StreamLoader):
    """A loader of streams that remembers."""


class Uneven:
    """Batches of numbers as a sampler of one's own makes them: global batches, divided anyhow."""

    def __init__(self, count, rank, world_size):
        self.count, self.rank, self.world_size = count, rank, world_size

    def __iter__(self):
        chance = np.random.default_rng(5)
        for numbers in np.split(chance.permutation(self.count), range(GLOBAL_BATCH, self.count, GLOBAL_BATCH)):
            cuts = np.sort(chance.choice(np.arange(1, len(numbers)), self.world_size - 1, replace=False))
            yield np.split(numbers, cuts)[self.rank].tolist()

    def __len__(self):
        return -(-self.count // GLOBAL_BATCH)


class RecordedOwn(Recording, torch.utils.data.DataLoader):
    """A loader of one's own that remembers."""

    step_ends = True


class Replayed:
    """The same loops over the global batches: what one process trains on.

    Parameters
    ----------
    loops_R
        The batches of every loop, of each rank.
    """

    def __init__(self, dataset, loops_R, length):
        self.dataset, self.length = dataset, length
        self.loops = [
            [list(parts) for parts in zip(*batches_R, strict=True)] for batches_R in zip(*loops_R, strict=True)
        ]
        self.sizes = []
        self.step_ends = True
        self.begun = 0

    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        self.begun += 1
        for parts in self.loops[self.begun - 1]:
            numbers = [number for part in parts for number in part]
            self.sizes = [len(part) for part in parts]
            rows = [self.dataset[number] for number in numbers]
            yield moved(torch.utils.data.default_collate(rows))


class Apart(torch.nn.Module):
    """Runs a network on each rank's part of a batch alone: what layers do that see their own rank's samples only."""

    def __init__(self, network, job):
        super().__init__()
        self.network, self.job = network, job

    def forward(self, inputs):
        parts = inputs.split(self.job.loaders[-1].sizes)
        return torch.cat([self.network(part) for part in parts])


def with_costs(options):
    """Return a loader's options with all that shapes say of costs in one object."""
    names = [field.name for field in dataclasses.fields(Costs)]
    said = {name: value for name, value in options.items() if name in names and value is not None}
    rest = {name: value for name, value in options.items() if name not in names}
    return {**rest, "costs": Costs(**said)} if said else rest


class Alone:
    """The balance of a job that has only one process."""

    def scale(self, loss, count=None):
        return loss

    def accumulating(self):
        return nullcontext()


class Job:
    """What a loop shape is written against.

    Parameters
    ----------
    drawn
        What the ranks drew, for the run alone: of every loader, the loops of each rank. None for the balanced run.
    """

    def __init__(self, drawn=None, lengths=None):
        self.alone = drawn is not None
        self.drawn, self.lengths = drawn, lengths
        self.rank = 0 if self.alone else dist.get_rank()
        self.world_size = 1 if self.alone else dist.get_world_size()
        self.loaders, self.balances, self.models = [], [], []
        self.device = DEVICE
        torch.manual_seed(0)

    def network(self, *, inputs=6, outputs=3, hidden=8):
        """A small network, the same in both runs."""
        layers = [torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, outputs)).double().to(self.device)

    def keep(self, network):
        """Compare this network's parameters at the end."""
        self.models.append(network)
        return network

    def ddp(self, network, *, apart=False, **options):
        """In DistributedDataParallel, on several ranks; its parameters are compared at the end."""
        self.keep(network.to(self.device))
        if self.alone:
            return Apart(network, self) if apart else network
        return DistributedDataParallel(network, **options)

    def loader(self, dataset=None, *, global_batch=GLOBAL_BATCH, **options):
        """Return a balanced loader; alone, the union of what the ranks drew."""
        # Other processes cannot load what lies on a device.
        dataset = on_device(dataset or Samples(), "cpu" if options.get("num_workers") else self.device)
        number = len(self.loaders)
        if self.alone:
            loader = Replayed(dataset, self.drawn[number], self.lengths[number])
        else:
            loader = Recorded(dataset, global_batch, **{"seed": 3, **with_costs(options)})
            loader.loops = []
        self.loaders.append(loader)
        return loader

    def stream(self, dataset, *, global_batch=GLOBAL_BATCH, **options):
        """Return a balanced loader of a stream over this dataset; alone, the union of what the ranks drew."""
        if self.alone:
            return self.loader(dataset)
        dataset = on_device(dataset, self.device)
        loader = RecordedStream(
            [dataset[number] for number in range(len(dataset))], global_batch, **with_costs(options)
        )
        loader.loops = []
        self.loaders.append(loader)
        return loader

    def own_loader(self, dataset):
        """Return a plain loader with uneven batches; alone, the union of what the ranks drew."""
        if self.alone:
            return self.loader(dataset)
        dataset = on_device(dataset, self.device)
        batches = Uneven(len(dataset), self.rank, self.world_size)
        loader = RecordedOwn(dataset, batch_sampler=batches, collate_fn=torch.utils.data.default_collate)
        loader.loops = []
        self.loaders.append(loader)
        return loader

    def scaling(self, model):
        """Attach without a loader: losses are scaled."""
        if self.alone:
            return Alone()
        scaling = attach(model)
        self.balances.append(scaling)
        return scaling

    def attach(self, model, loader, **options):
        """Attach, with sizes that change before every step."""
        if self.alone:
            return Alone()
        balance = attach(model, loader, **{"predictor": Restless(), "policy": FREE, **options})
        if balance not in self.balances:
            self.balances.append(balance)
        return balance

    def join(self, model, loader):
        """Attach a further model to a loader that has a balance already."""
        return None if self.alone else attach(model, loader)

    def no_sync(self, model, last=False):
        """Accumulate gradients without summing them, but for a step's last micro-batch."""
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
            return nullcontext()
        return nullcontext() if self.alone or last else model.no_sync()

    def all_reduce(self, tensor):
        """Return the sum over the ranks."""
        total = tensor.detach().clone().to(self.device)
        if not self.alone:
            dist.all_reduce(total)
        return total

    def sgd(self, *networks, rate=0.1):
        """An optimizer of all parameters."""
        parameters = [parameter for network in networks for parameter in network.parameters()]
        return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=rate, momentum=0.9)

    def close(self):
        """Take the balances off."""
        for balance in self.balances:
            balance.close()

    def parameters(self):
        """What the run ended with."""
        if any(isinstance(network, FullyShardedDataParallel) for network in self.models):
            with FullyShardedDataParallel.summon_full_params(self.models[0]):
                return [one.detach().clone().cpu().numpy() for one in self.models[0].parameters()]
        return [
            getattr(parameter, "full_tensor", lambda parameter=parameter: parameter)().detach().cpu().numpy().copy()
            for network in self.models
            for parameter in network.parameters()
        ]


def sharded(job, network, how="fully_shard"):
    """In FSDP2, HSDP, FSDP1 or composable replicate, on several ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if job.alone:
        return job.keep(network)
    if how == "FSDP1":
        return job.keep(FullyShardedDataParallel(network, device_id=torch.device("cpu"), use_orig_params=True))
    job.keep(network)
    if how == "replicate":
        from torch.distributed._composable.replicate import replicate

        return replicate(network)
    mesh = (
        init_device_mesh("cpu", (2, job.world_size // 2), mesh_dim_names=("replicas", "shards"))
        if how == "HSDP"
        else None
    )
    for layer in getattr(network, "inner", network)[::2]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(network, mesh=mesh)


def on_device(dataset, device):
    """Return a dataset whose tensors lie on a device."""
    for name, value in vars(dataset).items():
        if isinstance(value, torch.Tensor):
            setattr(dataset, name, value.to(device))
    return dataset


def moved(batch):
    """Return a batch on the device; the same batch, if it is there."""
    if DEVICE == "cpu" or not isinstance(batch, (list, tuple)):
        return batch
    return [part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in batch]


def mse(outputs, targets):
    return torch.nn.functional.mse_loss(outputs, targets)


def told(shape):
    """Run a shape on this rank; return the job, what it warned about, and the error it ended with."""
    job, error = Job(), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            shape(job)
        except (RuntimeError, ValueError, TypeError, AttributeError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        finally:
            job.close()
    return job, [str(warning.message) for warning in caught if warning.category.__name__ == "BalanceWarning"], error
