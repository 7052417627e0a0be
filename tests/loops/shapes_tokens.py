"""Samples of unequal cost, and losses over tokens of which some are ignored."""

import numpy as np
import torch
from composed import composed_shapes
from job import EPOCHS, SAMPLES, Samples, Sequences, mse
from torch.nn.functional import cross_entropy
from verdicts import exact, refused

shape = composed_shapes(__name__)


def token_loss(outputs, labels):
    return cross_entropy(outputs.flatten(0, 1), labels.flatten())


def masked_loss(outputs, labels):
    """The same by hand: 0 / 0 where all labels are ignored, and its gradients are NaN."""
    counts = (labels >= 0).double()
    losses = (outputs - 1).square().sum(-1)
    return (losses * counts).sum() / counts.sum()


def counted(labels):
    """How many labels count."""
    return (labels >= 0).sum()


def trained(job, loss_of=token_loss, *, model=None, clip=0.0, data=None, **options):
    """Train on sequences, with the mean over all labels that count."""
    data = data or Sequences()
    model = job.ddp(model or job.network())
    loader = job.loader(data, **{"lengths": data.lengths, **options})
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            balance.scale(loss_of(model(inputs), labels), counted(labels)).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@exact(ranks=(2, 4))
def a_mean_over_tokens_of_which_some_are_ignored(job):
    trained(job)


@exact(ranks=(2, 4))
def a_mean_over_tokens_taken_by_hand_on_ranks_without_any(job):
    trained(job, masked_loss)


@exact
def tokens_of_batches_of_which_the_first_are_skipped(job):
    """As when a job resumes."""
    data = Sequences()
    model = job.ddp(job.network())
    loader = job.loader(data, lengths=data.lengths)
    balance = job.attach(model, loader)
    optimizer = job.sgd(model)
    for epoch in range(EPOCHS + 2):
        for number, (inputs, labels, _) in enumerate(loader):
            if not epoch and number < 2:
                continue
            optimizer.zero_grad()
            balance.scale(token_loss(model(inputs), labels), counted(labels)).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def a_mean_over_tokens_with_clipping(job):
    trained(job, clip=0.05)


@exact(ranks=(2, 4))
def global_batches_whose_labels_are_all_ignored(job):
    data = Sequences()
    data.labels[:50] = -100
    trained(job, data=data, shuffle=False)


shape("a_mean_over_tokens_without_costs", kind="tokens")


@exact(ranks=(2, 4))
def a_budget_of_tokens(job):
    trained(job, global_batch=None, global_tokens=90.0)


@exact
def a_budget_of_tokens_under_a_cap_and_padded(job):
    trained(job, global_batch=None, global_tokens=90.0, cap=80.0, padded=True)


def steps_of(loader, every):
    """Yield the micro-batches of each step."""
    step = []
    for number, batch in enumerate(loader, 1):
        step.append(batch)
        if number % every == 0 or number == len(loader):
            yield step
            step = []


def accumulated(job, loss_of, *, every=3, sync=False, network=None):
    """Accumulate; alone, the mean over all tokens of the step."""
    data = Sequences()
    model = job.ddp(network or job.network())
    loader = job.loader(data, lengths=data.lengths, accumulate=every, global_batch=16)
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        if job.alone:
            for parts in steps_of(loader, every):
                inputs, labels, _ = (torch.cat(column) for column in zip(*parts, strict=True))
                loss_of(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            continue
        for number, (inputs, labels, _) in enumerate(loader, 1):
            last = number % every == 0 or number == len(loader)
            with job.no_sync(model, last or sync):
                balance.scale(loss_of(model(inputs), labels), counted(labels)).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def tokens_of_accumulated_batches(job):
    accumulated(job, token_loss)


@exact(ranks=(2, 4))
def tokens_of_accumulated_batches_taken_by_hand(job):
    accumulated(job, masked_loss)


shape(
    "tokens_of_accumulated_batches_that_the_loader_does_not_know",
    kind="tokens",
    accumulate=3,
    accumulation_is_said=False,
)


@exact
def tokens_of_accumulated_batches_that_are_summed_every_time(job):
    accumulated(job, token_loss, sync=True)


def by_samples(job, **options):
    """Train with the mean over samples, which the loader divides by cost."""
    lengths = np.ceil(9 * np.random.default_rng(4).lognormal(0, 0.8, SAMPLES))
    model = job.ddp(job.network())
    loader = job.loader(**{"lengths": lengths, **options})
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mse(model(inputs), targets).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def samples_whose_cost_is_learned(job):
    by_samples(job)


@exact(ranks=(2, 4))
def samples_of_given_cost_under_a_cap(job):
    costs = 1 + np.arange(SAMPLES) % 10
    by_samples(job, lengths=None, cost=costs, cap=120.0)


@exact
def costs_that_lie_by_a_factor_of_ten(job):
    by_samples(job, lengths=None, cost=np.where(np.arange(SAMPLES) % 2, 1.0, 10.0))


@exact
def samples_of_unequal_cost_loaded_ahead(job):
    by_samples(job, num_workers=1)


def in_micro_batches(job, loss_of=mse, data=None, *, count=None, model=None, clip=0.0, **options):
    """Ranks with different numbers of micro-batches; nothing is divided by how many they are."""
    model = model or job.ddp(job.network())
    loader = job.loader(data, **{"micro_batch": 4, "global_batch": 32, **options})
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            with balance.accumulating():
                loss = loss_of(model(inputs), targets)
                (balance.scale(loss, count(targets)) if count else loss).backward()
            if loader.step_ends:
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def ranks_with_different_numbers_of_micro_batches(job):
    in_micro_batches(job)


@exact(ranks=(2, 4))
def micro_batches_of_which_the_last_are_partial(job):
    in_micro_batches(job, global_batch=30, micro_batch=7)


@exact
def micro_batches_with_a_scaled_loss_and_clipping(job):
    in_micro_batches(job, count=len, clip=0.1)


@exact
def micro_batches_loaded_ahead_and_collated_by_hand(job):
    in_micro_batches(job, num_workers=1, collate_fn=torch.utils.data.default_collate)


@exact(ranks=(2, 4))
def micro_batches_of_tokens(job):
    data = Sequences()
    in_micro_batches(job, masked_loss, data, lengths=data.lengths, count=counted)


@refused("put forward and backward into `with balance.accumulating():`")
def micro_batches_whose_gradients_are_summed_every_time(job):
    model, loader = job.ddp(job.network()), job.loader(micro_batch=2)
    job.attach(model, loader)
    for inputs, targets, _ in loader:
        mse(model(inputs), targets).backward()


def from_a_stream(job, loss_of=mse, data=None, count=None, **options):
    data = data or Samples()
    model, loader = job.ddp(job.network()), job.stream(data, window=20, **options)
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            (balance.scale(loss, count(targets)) if count else loss).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def samples_of_a_stream(job):
    from_a_stream(job)


@exact(ranks=(2, 4))
def samples_of_a_stream_whose_cost_is_learned(job):
    from_a_stream(job, lengths=lambda sample: 1 + sample[-1] % 13)


@exact
def tokens_of_a_stream(job):
    from_a_stream(job, token_loss, Sequences(), counted, cost=lambda sample: 1 + sample[-1] % 13)
