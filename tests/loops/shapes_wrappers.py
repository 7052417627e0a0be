"""Model wrappers, and layers that see the samples of other ranks."""

import pickle
from contextlib import nullcontext

import torch
import torch.distributed as dist
from composed import composed_shapes
from job import EPOCHS, mse, sharded
from shapes_order import step
from torch.utils.checkpoint import checkpoint
from verdicts import exact, refused

shape = composed_shapes(__name__)


def trained(job, model, *, scaled=False):
    loader = job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            (balance.scale(loss, len(inputs)) if scaled else loss).backward()
            optimizer.step()


shape("a_static_graph", wrapper="static graph")
shape("views_of_the_buckets", wrapper="views")
shape("many_buckets", wrapper="buckets")
shape("parameters_that_are_not_used", wrapper="unused")


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


@refused("call the model that was passed to attach() (not model.module)")
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


shape("fully_sharded", ranks=(2, 4), wrapper="FSDP2")
shape("fully_sharded_and_a_scaled_loss", ranks=(2, 4), wrapper="FSDP2", kind="scaled")
shape("hybrid_sharded", ranks=(4,), wrapper="HSDP")
shape("hybrid_sharded_and_a_scaled_loss", ranks=(4,), wrapper="HSDP", kind="scaled")
shape("sharded_by_fsdp1", ranks=(2, 4), wrapper="FSDP1")
shape("sharded_by_fsdp1_and_a_scaled_loss", wrapper="FSDP1", kind="scaled")
shape("replicated", ranks=(2, 4), wrapper="replicate")
shape("replicated_and_a_scaled_loss", ranks=(2, 4), wrapper="replicate", kind="scaled")


@refused("all ranks of this FSDPSequential gather parameters in every forward pass and so need the same number")
def micro_batches_under_fsdp(job):
    model, loader = sharded(job, job.network()), job.loader(micro_batch=2)
    job.attach(model, loader)


shape("micro_batches_under_hsdp", ranks=(4,), wrapper="HSDP", accumulate="micro-batches")
shape("micro_batches_of_tokens_under_hsdp", ranks=(4,), wrapper="HSDP", kind="tokens", accumulate="micro-batches")


@refused("pass drop_last=True to the loader", ranks=(4,))
def micro_batches_under_hsdp_and_a_short_last_batch(job):
    model, loader = sharded(job, job.network(), "HSDP"), job.loader(micro_batch=2)
    job.attach(model, loader)


shape("tokens_on_ranks_without_any", ranks=(2, 4), kind="tokens", accumulate=2, clip=True)
shape("tokens_on_fully_sharded_ranks_without_any", ranks=(2, 4), kind="tokens", wrapper="FSDP2", clip=True)
shape(
    "tokens_of_micro_batches_on_fully_sharded_ranks",
    ranks=(2, 4),
    kind="tokens",
    wrapper="FSDP2",
    accumulate=3,
    clip=True,
)
shape("tokens_on_hybrid_sharded_ranks_without_any", ranks=(4,), kind="tokens", wrapper="HSDP", accumulate=2, clip=True)
shape("tokens_on_replicated_ranks_without_any", kind="tokens", wrapper="replicate", clip=True)
shape("tokens_of_sparse_gradients_on_ranks_without_any", kind="tokens", wrapper="sparse")


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
