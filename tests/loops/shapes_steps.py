"""What a step is made of: micro-batches, clipping, optimizers."""

import copy

import torch
from job import EPOCHS, mse
from shapes_order import begun, step
from verdicts import exact, refused


def accumulated(job, model, loader, optimizer, *, every, sync=False):
    for _ in range(EPOCHS):
        for number, (inputs, targets, _) in enumerate(loader, 1):
            last = number % every == 0 or number == len(loader)
            with job.no_sync(model, last or sync):
                (mse(model(inputs), targets) / every).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


@exact(ranks=(2, 4))
def gradients_accumulate_under_no_sync(job):
    model, loader, optimizer = begun(job, accumulate=3)
    accumulated(job, model, loader, optimizer, every=3)


@exact
def gradients_accumulate_under_no_sync_and_the_loader_does_not_know(job):
    model, loader, optimizer = begun(job)
    accumulated(job, model, loader, optimizer, every=2)


@exact
def gradients_accumulate_and_are_summed_every_time(job):
    model, loader, optimizer = begun(job, accumulate=3)
    accumulated(job, model, loader, optimizer, every=3, sync=True)


@exact
def gradients_accumulate_in_views_of_the_buckets(job):
    model, loader = job.ddp(job.network(), gradient_as_bucket_view=True), job.loader(accumulate=2)
    job.attach(model, loader)
    accumulated(job, model, loader, job.sgd(model), every=2)


@exact(ranks=(2, 4))
def scaled_losses_of_micro_batches(job, sync=False):
    """The mean over all samples of a step."""
    model, loader = job.ddp(job.network()), job.loader(accumulate=3)
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _ in range(EPOCHS):
        step = []
        for number, batch in enumerate(loader, 1):
            last = number % 3 == 0 or number == len(loader)
            step.append(batch)
            if job.alone and last:
                inputs, targets, _ = (torch.cat(column) for column in zip(*step, strict=True))
                mse(model(inputs), targets).backward()
            elif not job.alone:
                with job.no_sync(model, last or sync):
                    balance.scale(mse(model(batch[0]), batch[1]), len(batch[0])).backward()
            if last:
                step = []
                optimizer.step()
                optimizer.zero_grad()


@exact
def scaled_losses_that_are_summed_every_time(job):
    scaled_losses_of_micro_batches(job, sync=True)


@exact
def gradients_are_clipped(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mse(model(inputs), targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()


@exact
def a_gradient_scaler_for_mixed_precision(job):
    model, loader, optimizer = begun(job)
    scaler = torch.amp.GradScaler(job.device, init_scale=1024.0)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            scaler.scale(mse(model(inputs), targets)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()


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
