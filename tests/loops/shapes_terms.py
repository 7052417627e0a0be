"""Loss terms that only the batch shows, and loaders of one's own."""

import torch
from job import EPOCHS, mse
from shapes_tokens import Sequences, masked_loss, steps_of, token_loss
from verdicts import exact, refused


def count(batch):
    return (batch[1] >= 0).sum()


def squares(outputs, labels):
    """The sum that the masked loss divides by its terms."""
    return (outputs - 1).square().sum(-1)[labels >= 0].sum()


def own(job, loss_of=masked_loss, **options):
    data = Sequences()
    model, loader = job.ddp(job.network()), job.own_loader(data)
    batches, optimizer = job.terms(model, loader, loss_terms=count, **options), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in batches:
            optimizer.zero_grad()
            (masked_loss if job.alone else loss_of)(model(inputs), labels).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def a_loader_of_ones_own_with_a_batch_sampler(job):
    own(job)


@exact(ranks=(2, 4))
def a_loader_of_ones_own_and_a_loss_that_is_a_sum(job):
    own(job, squares, loss="sum")


@exact(ranks=(2, 4))
def a_loader_of_ones_own_whose_terms_the_loop_says(job):
    data = Sequences()
    model, loader = job.ddp(job.network()), job.own_loader(data)
    weights, optimizer = job.terms(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            weights.count((labels >= 0).sum())
            token_loss(model(inputs), labels).backward()
            optimizer.step()


def accumulated(job, model, loader, batches, every=3, divided=True, sync=False):
    """Accumulate, dividing by the number of micro-batches; alone, the mean over all terms of the step."""
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        if job.alone:
            for parts in steps_of(loader, every):
                inputs, labels, _ = (torch.cat(column) for column in zip(*parts, strict=True))
                masked_loss(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            continue
        for number, (inputs, labels, _) in enumerate(batches, 1):
            last = number % every == 0 or number == len(loader)
            with job.no_sync(model, last or sync):
                (masked_loss(model(inputs), labels) / (every if divided else 1)).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def a_loader_of_ones_own_that_accumulates(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    accumulated(job, model, loader, job.terms(model, loader, loss_terms=count, accumulate=3))


@refused("more than accumulate=1 says")
def a_loader_of_ones_own_that_accumulates_unsaid(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    accumulated(job, model, loader, job.terms(model, loader, loss_terms=count))


@exact(ranks=(2, 4))
def a_loader_of_ones_own_whose_gradients_are_summed_every_time(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    accumulated(job, model, loader, job.terms(model, loader, loss_terms=count, accumulate=3), sync=True)


@exact
def a_loader_of_ones_own_that_is_read_ahead(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    batches, optimizer = iter(job.terms(model, loader, loss_terms=count)), job.sgd(model)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        optimizer.zero_grad()
        masked_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        batch = following


@refused("how many terms has the loss of this batch?")
def a_loader_of_ones_own_whose_terms_nobody_says(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    job.terms(model, loader)
    for inputs, _, _ in loader:
        model(inputs).sum().backward()


@refused("got a DataLoader, whose batches are fixed, by its batch_sampler too")
def a_loader_of_ones_own_without_loss_terms(job):
    model, loader = job.ddp(job.network()), job.own_loader(Sequences())
    job.attach(model, loader)


def counted(job, loss_of=masked_loss, *, loss="mean", **options):
    """A balanced loader that does not know which labels count."""
    data = Sequences()
    model = job.ddp(job.network())
    loader = job.loader(data, lengths=data.lengths, **options)
    balance, optimizer = job.attach(model, loader, loss_terms=count, loss=loss), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            with balance.accumulating():
                (masked_loss if job.alone else loss_of)(model(inputs), labels).backward()
            if loader.step_ends:
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def terms_that_only_a_balanced_batch_shows(job):
    counted(job)


@exact(ranks=(2, 4))
def sums_over_terms_that_only_a_balanced_batch_shows(job):
    counted(job, squares, loss="sum")


@exact
def a_mean_weighted_by_the_class_of_a_sample(job):
    """Divided by the weights of the rank's samples: their sum is the number of its terms."""
    weight = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64, device=job.device)
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader, loss_terms=lambda batch: weight[batch[1].argmax(1)].sum())
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets.argmax(1), weight=weight).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def terms_that_only_balanced_micro_batches_show(job):
    counted(job, micro_batch=4, global_batch=32)


@exact(ranks=(2, 4))
def terms_that_only_accumulated_batches_show(job):
    data = Sequences()
    model, loader = job.ddp(job.network()), job.loader(data, lengths=data.lengths, accumulate=3, global_batch=16)
    job.attach(model, loader, loss_terms=count)
    accumulated(job, model, loader, loader)


@exact
def terms_that_only_a_batch_of_a_stream_shows(job):
    data = Sequences()
    model, loader = job.ddp(job.network()), job.stream(data, window=20, cost=lambda sample: 1 + sample[-1] % 13)
    job.attach(model, loader, loss_terms=count)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            token_loss(model(inputs), labels).backward()
            optimizer.step()


@refused("the loader knows its loss terms already")
def terms_that_the_loader_knows_counted_once_more(job):
    data = Sequences()
    model, loader = job.ddp(job.network()), job.loader(data, loss_terms=data.loss_terms)
    job.attach(model, loader, loss_terms=count)


@refused("did not hand out, and with attach(..., loss_terms=) their number of loss terms is not known")
def rows_from_elsewhere_beside_counted_terms(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader, loss_terms=lambda batch: len(batch[0]))
    for inputs, targets, _ in loader:
        mse(model(inputs), targets).backward()
        model(torch.zeros(101, 6, dtype=torch.float64, device=job.device)).sum().backward()
