"""Micro-batches, clipping, optimizers."""

import copy

import torch
from composed import composed_shapes
from job import EPOCHS, mse
from shapes_order import begun, step
from verdicts import exact, refused

shape = composed_shapes(__name__)


shape("gradients_accumulate_under_no_sync", ranks=(2, 4), accumulate=3)
shape("gradients_accumulate_under_no_sync_and_the_loader_does_not_know", accumulate=2, accumulation_is_said=False)
shape("gradients_accumulate_and_are_summed_every_time", accumulate=3, summed="every")
shape("gradients_accumulate_in_views_of_the_buckets", accumulate=2, wrapper="views")
shape("scaled_losses_of_micro_batches", ranks=(2, 4), kind="scaled", accumulate=3)
shape("scaled_losses_that_are_summed_every_time", kind="scaled", accumulate=3, summed="every")
shape("gradients_are_clipped", clip=True)
shape("a_gradient_scaler_for_mixed_precision", optimizer="scaled", clip=True)


@exact
def adam_with_a_schedule_per_step(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * len(loader))
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)
            schedule.step()


@exact
def gradients_set_to_zero_in_place(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            mse(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@exact
def an_average_of_the_model_beside_it(job):
    model, loader, optimizer = begun(job)
    average = copy.deepcopy(model)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
                average(batch[0])


@exact
def a_step_of_two_passes(job):
    """The second where the loss of the first is largest nearby (sharpness-aware minimization)."""
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            mse(model(inputs), targets).backward()
            away = [0.5 * parameter.grad for parameter in model.parameters()]
            with torch.no_grad():
                torch._foreach_add_([*model.parameters()], away)
            optimizer.zero_grad()
            mse(model(inputs), targets).backward()
            with torch.no_grad():
                torch._foreach_sub_([*model.parameters()], away)
            optimizer.step()
            optimizer.zero_grad()


@refused("the optimizer steps on gradients of this rank alone")
def steps_between_averages_of_the_model(job):
    model, loader, optimizer = begun(job)
    for batch in loader:
        with job.no_sync(model):
            step(model, optimizer, batch)
        for parameter in model.parameters():
            parameter.data = job.all_reduce(parameter.data) / job.world_size


@exact
def frozen_layers(job):
    network = job.network()
    network[0].requires_grad_(False)
    model, loader = job.ddp(network), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


@exact
def an_optimizer_that_shards_its_state(job):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    rates = {"lr": 0.1, "momentum": 0.9}
    optimizer = (
        torch.optim.SGD(model.parameters(), **rates)
        if job.alone
        else ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **rates)
    )
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


@refused("LBFGS")
def an_optimizer_that_evaluates_the_loss_several_times(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    for inputs, targets, _ in loader:

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)


@exact
def a_closure_for_an_optimizer_that_calls_it_once(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = mse(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)
