"""What the model is wrapped in, and layers that see more than their rank's samples."""

import pickle
from contextlib import nullcontext

import torch
import torch.distributed as dist
from job import EPOCHS, mse
from shapes_order import step
from shapes_tokens import Sequences, counted, in_micro_batches, masked_loss
from torch.utils.checkpoint import checkpoint
from verdicts import exact, refused


def trained(job, model, *, scaled=False):
    loader = job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            (balance.scale(loss, len(inputs)) if scaled else loss).backward()
            optimizer.step()


@exact
def a_static_graph(job):
    trained(job, job.ddp(job.network(), static_graph=True))


@exact
def views_of_the_buckets(job):
    trained(job, job.ddp(job.network(), gradient_as_bucket_view=True))


@exact
def many_buckets(job):
    trained(job, job.ddp(job.network(hidden=200), bucket_cap_mb=0.05))


@exact
def parameters_that_are_not_used(job):
    class Unused(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.spare = inner, torch.nn.Linear(2, 2).double()

        def forward(self, inputs):
            return self.inner(inputs)

    trained(job, job.ddp(Unused(job.network()), find_unused_parameters=True))


@exact
def a_compiled_model_inside(job):
    network = job.keep(job.network())
    inside = torch.compile(network, backend="aot_eager", dynamic=True)
    model = inside if job.alone else torch.nn.parallel.DistributedDataParallel(inside)
    trained(job, model)


@exact
def a_compiled_model_outside(job):
    trained(job, torch.compile(job.ddp(job.network()), backend="aot_eager", dynamic=True))


@exact
def a_model_compiled_after_it_was_attached(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    compiled, optimizer = torch.compile(model, backend="aot_eager", dynamic=True), job.sgd(model)
    for _ in range(EPOCHS):
        for batch in loader:
            step(compiled, optimizer, batch)


class Checkpointed(torch.nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, inputs):
        return checkpoint(self.inner, inputs.requires_grad_(), use_reentrant=self.reentrant)


@exact
def activations_computed_again(job):
    trained(job, job.ddp(Checkpointed(job.network(), reentrant=False)))


@exact
def activations_computed_again_by_a_nested_backward_pass(job):
    trained(job, job.ddp(Checkpointed(job.network(), reentrant=True)))


@exact
def a_model_that_was_pickled_and_copied(job):
    model = job.ddp(job.network())
    loader = job.loader()
    job.attach(model, loader)
    if not job.alone:
        pickle.loads(pickle.dumps(model.module))
    optimizer = job.sgd(model)
    for batch in loader:
        step(model, optimizer, batch)


@exact(ranks=(2, 4))
def a_communication_hook_of_the_users_own(job):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = job.ddp(job.network())
    if not job.alone:
        model.register_comm_hook(None, allreduce_hook)
    trained(job, model, scaled=True)


@refused("call the model that was given to attach() (not model.module)")
def the_model_inside_is_called(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    for batch in loader:
        step(model if job.alone else model.module, job.sgd(model), batch)


class Clicks(torch.nn.Module):
    """A table of which a batch touches few rows, whose gradients are sparse."""

    def __init__(self, network):
        super().__init__()
        self.table, self.network = torch.nn.EmbeddingBag(20, 6, mode="sum", sparse=True).double(), network

    def forward(self, inputs):
        return self.network(inputs + self.table((10 * inputs.abs()).long().clamp(max=19)))


class Waves(torch.nn.Module):
    """A network with a layer of complex numbers."""

    def __init__(self):
        super().__init__()
        self.waves = torch.nn.Linear(6, 8, dtype=torch.complex128)
        self.network = torch.nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, inputs):
        return self.network(self.waves(inputs.to(torch.complex128)).abs())


@exact(ranks=(2, 4))
def complex_parameters(job):
    """Each step of two micro-batches."""
    model, loader = job.ddp(Waves()), job.loader(accumulate=2)
    job.attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(EPOCHS):
        for number, (inputs, targets, _) in enumerate(loader, 1):
            last = number % 2 == 0 or number == len(loader)
            with job.no_sync(model, last):
                (mse(model(inputs), targets) / 2).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


@exact
def sparse_gradients(job):
    model, loader = job.ddp(Clicks(job.network())), job.loader()
    job.attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


@exact
def a_join_for_uneven_numbers_of_batches(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        with nullcontext() if job.alone else model.join():
            for batch in loader:
                step(model, optimizer, batch)


def normalized(job, kind):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), kind(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


@exact
def batch_normalization_of_the_ranks_own_samples(job):
    """As without balancing: each rank normalizes its own samples."""
    trained(job, job.ddp(normalized(job, torch.nn.BatchNorm1d), apart=True))


class Synchronized(torch.nn.Module):
    """Batch normalization over all ranks, as SyncBatchNorm, which needs a GPU, does it."""

    def __init__(self, features, job):
        super().__init__()
        self.alone = job.alone

    def forward(self, rows):
        from torch.distributed.nn.functional import all_reduce

        count = torch.tensor([float(len(rows))], dtype=rows.dtype, device=rows.device)
        sums = torch.cat([count, rows.sum(0), rows.square().sum(0)])
        if not self.alone:
            sums = all_reduce(sums)
        count, first, second = sums[0], sums[1 : 1 + rows.shape[1]], sums[1 + rows.shape[1] :]
        mean = first / count
        return (rows - mean) / (second / count - mean.square() + 1e-5).sqrt()


def synchronized(job):
    return job.ddp(normalized(job, lambda features: Synchronized(features, job)))


@exact(ranks=(2, 4))
def batch_normalization_over_all_ranks(job):
    trained(job, synchronized(job))


@exact
def batch_normalization_over_all_ranks_and_a_scaled_loss(job):
    trained(job, synchronized(job), scaled=True)


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


@exact(ranks=(2, 4))
def fully_sharded(job):
    trained(job, sharded(job, job.network()))


@exact(ranks=(2, 4))
def fully_sharded_and_a_scaled_loss(job):
    trained(job, sharded(job, job.network()), scaled=True)


@exact(ranks=(4,))
def hybrid_sharded(job):
    trained(job, sharded(job, job.network(), "HSDP"))


@exact(ranks=(4,))
def hybrid_sharded_and_a_scaled_loss(job):
    trained(job, sharded(job, job.network(), "HSDP"), scaled=True)


@exact(ranks=(2, 4))
def sharded_by_fsdp1(job):
    trained(job, sharded(job, job.network(), "FSDP1"))


@exact
def sharded_by_fsdp1_and_a_scaled_loss(job):
    trained(job, sharded(job, job.network(), "FSDP1"), scaled=True)


@exact(ranks=(2, 4))
def replicated(job):
    trained(job, sharded(job, job.network(), "replicate"))


@exact(ranks=(2, 4))
def replicated_and_a_scaled_loss(job):
    trained(job, sharded(job, job.network(), "replicate"), scaled=True)


@refused("all ranks of this FSDPSequential gather parameters in every forward pass and so need the same number")
def micro_batches_under_fsdp(job):
    model, loader = sharded(job, job.network()), job.loader(micro_batch=2)
    job.attach(model, loader)


@exact(ranks=(4,))
def micro_batches_under_hsdp(job):
    in_micro_batches(job, model=sharded(job, job.network(), "HSDP"), global_batch=44, micro_batch=2, drop_last=True)


@exact(ranks=(4,))
def micro_batches_of_tokens_under_hsdp(job):
    network = sharded(job, job.network(), "HSDP")
    in_micro_batches(
        job, masked_loss, Sequences(), model=network, count=counted, global_batch=44, micro_batch=2, drop_last=True
    )


@refused("pass drop_last=True to the loader", ranks=(4,))
def micro_batches_under_hsdp_and_a_short_last_batch(job):
    model, loader = sharded(job, job.network(), "HSDP"), job.loader(micro_batch=2)
    job.attach(model, loader)


def tokens_of_ranks_without_any(job, model, *, every=1, clip=0.05):
    """A mean over tokens that count, in steps of several micro-batches."""
    loader = job.loader(Sequences())
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        step = []
        for number, batch in enumerate(loader, 1):
            last = number % every == 0 or number == len(loader)
            step.append(batch)
            if job.alone and last:
                inputs, labels, _ = (torch.cat(column) for column in zip(*step, strict=True))
                masked_loss(model(inputs), labels).backward()
            elif not job.alone:
                with job.no_sync(model, last):
                    loss = masked_loss(model(batch[0]), batch[1])
                    balance.scale(loss, (batch[1] >= 0).sum()).backward()
            if last:
                step = []
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def tokens_on_ranks_without_any(job):
    tokens_of_ranks_without_any(job, job.ddp(job.network()), every=2)


@exact(ranks=(2, 4))
def tokens_on_fully_sharded_ranks_without_any(job):
    tokens_of_ranks_without_any(job, sharded(job, job.network()))


@exact(ranks=(2, 4))
def tokens_of_micro_batches_on_fully_sharded_ranks(job):
    tokens_of_ranks_without_any(job, sharded(job, job.network()), every=3)


@exact(ranks=(4,))
def tokens_on_hybrid_sharded_ranks_without_any(job):
    tokens_of_ranks_without_any(job, sharded(job, job.network(), "HSDP"), every=2)


@exact
def tokens_on_replicated_ranks_without_any(job):
    tokens_of_ranks_without_any(job, sharded(job, job.network(), "replicate"))


@exact
def tokens_of_sparse_gradients_on_ranks_without_any(job):
    model, loader = job.ddp(Clicks(job.network())), job.loader(Sequences())
    balance, optimizer = job.attach(model, loader), torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels, _ in loader:
        optimizer.zero_grad()
        loss = masked_loss(model(inputs.flatten(0, 1)).unflatten(0, labels.shape), labels)
        balance.scale(loss, (labels >= 0).sum()).backward()
        optimizer.step()


@refused("were frozen when it wrapped the model")
def parameters_that_are_unfrozen_later(job):
    network = job.network()
    network[0].requires_grad_(False)
    model, loader = job.ddp(network), job.loader()
    job.attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        network[0].requires_grad_(True)
        step(model, optimizer, batch)


@refused("ranks are all data-parallel", ranks=(4,))
def tensor_parallel_beside_data_parallel(job):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    network = parallelize_module(job.network(), mesh["tensor"], {"0": ColwiseParallel()})
    job.attach(fully_shard(network, mesh=mesh["data"]), job.loader())


@exact(ranks=(2, 4))
def gradients_averaged_by_hand(job, scaled=False):
    model, loader = job.keep(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            (balance.scale(loss, len(inputs)) if scaled else loss).backward()
            if not job.alone:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            optimizer.step()


@exact
def gradients_of_a_scaled_loss_averaged_by_hand(job):
    gradients_averaged_by_hand(job, scaled=True)


@refused("DataLoader")
def a_plain_loader(job):
    model = job.ddp(job.network())
    job.attach(model, torch.utils.data.DataLoader(range(10)))
