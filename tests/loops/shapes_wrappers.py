"""What the model is wrapped in, and layers that see more than their rank's samples."""

import pickle
from contextlib import nullcontext

import torch
import torch.distributed as dist
from job import EPOCHS, mse
from shapes_order import step
from torch.utils.checkpoint import checkpoint
from verdicts import exact, refused


def trained(job, model, **options):
    loader = job.loader()
    balance, optimizer = job.attach(model, loader, **options), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            (balance.scale(loss) if options.get("loss") == "scaled" else loss).backward()
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


@refused("communication hook")
def a_communication_hook_of_the_users_own(job):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = job.ddp(job.network())
    model.register_comm_hook(None, fp16_compress_hook)
    job.attach(model, job.loader())


@refused("takes only one, which balancing needs")
def a_communication_hook_after_attaching(job):
    model = job.ddp(job.network())
    job.attach(model, job.loader())
    model.register_comm_hook(None, lambda state, bucket: None)


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


def normalised(job, kind):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), kind(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


@exact
def batch_normalisation_of_the_ranks_own_samples(job):
    """As without balancing: each rank normalises its own samples."""
    trained(job, job.ddp(normalised(job, torch.nn.BatchNorm1d), apart=True))


class Synchronised(torch.nn.Module):
    """Batch normalisation over all ranks, as SyncBatchNorm, which needs a GPU, does it."""

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


def synchronised(job):
    return job.ddp(normalised(job, lambda features: Synchronised(features, job)))


@exact(ranks=(2, 4))
def batch_normalisation_over_all_ranks(job):
    trained(job, synchronised(job), loss="scaled")


@refused("a collective inside the backward pass")
def batch_normalisation_over_all_ranks_whose_gradients_are_weighted(job):
    trained(job, synchronised(job))


@exact(ranks=(2, 4))
def fully_sharded(job):
    from torch.distributed.fsdp import fully_shard

    network = job.keep(job.network())
    if not job.alone:
        for layer in network[::2]:
            fully_shard(layer)
        fully_shard(network)
    trained(job, network, loss="scaled")


@exact
def fully_sharded_with_tokens_normalised_over_all_ranks(job):
    from torch.distributed.fsdp import fully_shard

    model, loader = job.keep(job.network()), job.loader()
    if not job.alone:
        fully_shard(model)
    job.attach(model, loader, loss="sum")
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            tokens = job.all_reduce(torch.tensor(float(targets.numel())))
            ((model(inputs) - targets).square().sum() * job.world_size / tokens).backward()
            optimizer.step()


@refused("needs balance.scale(loss)")
def fully_sharded_without_scaling_the_loss(job):
    from torch.distributed.fsdp import fully_shard

    network = job.keep(job.network())
    fully_shard(network)
    loader = job.loader()
    job.attach(network, loader, loss="scaled")
    for batch in loader:
        step(network, job.sgd(network), batch)


@refused("DistributedDataParallel")
def a_bare_model(job):
    job.attach(job.keep(job.network()), job.loader())


@exact(ranks=(2, 4))
def gradients_averaged_by_hand(job):
    model, loader = job.keep(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader, loss="scaled"), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            balance.scale(mse(model(inputs), targets)).backward()
            if not job.alone:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            optimizer.step()


@refused("DataLoader")
def a_plain_loader(job):
    model = job.ddp(job.network())
    job.attach(model, torch.utils.data.DataLoader(range(10)))
