"""Loss terms that only the batch shows, and loaders of one's own."""

import torch
from job import EPOCHS
from shapes_tokens import Sequences, counted, masked_loss, steps_of
from verdicts import exact, refused


def own(job, loss_of=masked_loss, scaled=True):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    balance, optimizer = job.scaling(model), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            (balance.scale(loss, counted(labels)) if scaled else loss).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def a_loader_of_ones_own_with_a_batch_sampler(job):
    own(job)


@refused("attach() was given no loader whose batches could be counted: write loss = balance.scale(loss, count)")
def a_loader_of_ones_own_whose_loss_is_not_scaled(job):
    own(job, scaled=False)


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


def accumulated(job, every=3, sync=False):
    """Accumulate; alone, the mean over all terms of the step."""
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    balance, optimizer = job.scaling(model), job.sgd(model)
    for _ in range(EPOCHS):
        if job.alone:
            for parts in steps_of(loader, every):
                inputs, labels, _ = (torch.cat(column) for column in zip(*parts, strict=True))
                masked_loss(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            continue
        for number, (inputs, labels, _) in enumerate(loader, 1):
            last = number % every == 0 or number == len(loader)
            with job.no_sync(model, last or sync):
                balance.scale(masked_loss(model(inputs), labels), counted(labels)).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def a_loader_of_ones_own_that_accumulates(job):
    accumulated(job)


@exact(ranks=(2, 4))
def a_loader_of_ones_own_whose_gradients_are_summed_every_time(job):
    accumulated(job, sync=True)


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
