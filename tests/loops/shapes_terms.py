"""Loss terms that depend on the batch, and your own loaders."""

import torch
from composed import composed_shapes
from job import EPOCHS, Sequences
from shapes_tokens import counted, masked_loss
from verdicts import exact, refused

shape = composed_shapes(__name__)


shape("a_loader_of_ones_own_with_a_batch_sampler", ranks=(2, 4), kind="own loader")


@refused("attach() was called without a balanced loader, so its batches cannot be counted: write loss = balance.scale")
def a_loader_of_ones_own_whose_loss_is_not_scaled(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    job.scaling(model)
    for inputs, labels, _ in loader:
        masked_loss(model(inputs), labels).backward()


@exact(ranks=(2, 4))
def a_loader_of_ones_own_and_a_loss_over_all_ranks(job):
    """Divided by the terms of all ranks already."""
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    balance, optimizer = job.scaling(model), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            total = job.all_reduce(counted(labels).double())
            squares = (model(inputs) - 1).square().sum(-1)[labels >= 0].sum()
            balance.scale(squares * job.world_size / total).backward()
            optimizer.step()


shape("a_loader_of_ones_own_that_accumulates", ranks=(2, 4), kind="own loader", accumulate=3)
shape(
    "a_loader_of_ones_own_whose_gradients_are_summed_every_time",
    ranks=(2, 4),
    kind="own loader",
    accumulate=3,
    summed="every",
)


@refused("got a DataLoader, whose batches are fixed, by its batch_sampler too")
def a_loader_of_ones_own_that_is_attached(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    job.attach(model, loader)


@exact
def a_mean_weighted_by_the_class_of_a_sample(job):
    """Divided by the weights of the rank's samples: their sum is what the loss is a mean over."""
    weight = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64, device=job.device)
    model, loader = job.ddp(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets.argmax(1), weight=weight)
            balance.scale(loss, weight[targets.argmax(1)].sum()).backward()
            optimizer.step()
