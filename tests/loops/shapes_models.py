"""Several models, several loaders."""

import copy
from itertools import chain

import torch
from job import EPOCHS, Samples, mse
from shapes_order import step
from verdicts import exact, refused, warned


def adversaries(job):
    return job.ddp(job.network(inputs=4, outputs=3)), job.ddp(job.network(inputs=3, outputs=1))


def play(job, generator, critic, loader):
    """A generator and its critic, in turns on the same batches."""
    first, second = job.sgd(generator, rate=0.02), job.sgd(critic, rate=0.02)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            real = critic(targets)
            fake = generator(inputs[:, :4])
            second.zero_grad()
            with job.no_sync(critic):
                bce(real, torch.ones_like(real)).backward()
            rejected = critic(fake.detach())
            bce(rejected, torch.zeros_like(rejected)).backward()
            second.step()
            first.zero_grad()
            fooled = critic(fake)
            bce(fooled, torch.ones_like(fooled)).backward()
            first.step()


@exact(ranks=(2, 4))
def a_generator_and_its_critic(job):
    generator, critic = adversaries(job)
    loader = job.loader()
    job.attach(critic, loader)
    job.join(generator, loader)
    play(job, generator, critic, loader)


@warned("further model in DistributedDataParallel")
def a_generator_that_is_not_attached(job):
    generator, critic = adversaries(job)
    loader = job.loader()
    job.attach(critic, loader)
    play(job, generator, critic, loader)


@refused("already attached")
def a_second_model_with_options_of_its_own(job):
    generator, critic = adversaries(job)
    loader = job.loader()
    job.attach(critic, loader)
    job.attach(generator, loader)


@refused("already attached")
def one_model_with_two_loaders(job):
    model = job.ddp(job.network())
    job.attach(model, job.loader())
    job.attach(model, job.loader())


@exact
def two_models_in_turns(job):
    models = [job.ddp(job.network()), job.ddp(job.network(hidden=5))]
    loader = job.loader()
    job.attach(models[0], loader)
    job.join(models[1], loader)
    optimizers = [job.sgd(model) for model in models]
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            step(models[number % 2], optimizers[number % 2], batch)


@exact
def a_teacher_and_its_student(job):
    network = job.network()
    teacher = copy.deepcopy(network).eval()
    model, loader = job.ddp(network), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher(inputs)
            outputs = model(inputs)
            (mse(outputs, targets) + mse(outputs, wanted)).backward()
            optimizer.step()


def unlabeled(job):
    """Batches of 5 samples a rank from a plain loader; alone, of all ranks together."""
    samples = Samples()
    for begin in range(0, 100, 10):
        rows = slice(begin, begin + 10) if job.alone else slice(begin + 5 * job.rank, begin + 5 * job.rank + 5)
        yield samples.inputs[rows]


@refused("write loss = balance.scale(loss, count)")
def a_second_plain_loader_in_the_same_forward_pass(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for (inputs, targets, _), other in zip(loader, unlabeled(job), strict=False):
        optimizer.zero_grad()
        outputs = model(torch.cat([inputs, other]))
        (mse(outputs[: len(inputs)], targets) + outputs[len(inputs) :].square().mean()).backward()
        optimizer.step()


@refused("write loss = balance.scale(loss, count)")
def a_second_plain_loader_in_the_same_backward_pass(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for (inputs, targets, _), other in zip(loader, unlabeled(job), strict=False):
        optimizer.zero_grad()
        (mse(model(inputs), targets) + model(other).square().mean()).backward()
        optimizer.step()


@exact
def a_second_plain_loader_with_scaled_losses(job):
    """The mean over the rows of both."""
    model, loader = job.ddp(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for (inputs, targets, _), other in zip(loader, unlabeled(job), strict=False):
        optimizer.zero_grad()
        own, others = mse(model(inputs), targets), model(other).square().mean()
        if job.alone:
            (own * len(inputs) + others * len(other)).div(len(inputs) + len(other)).backward()
        else:
            (balance.scale(own, len(inputs)) + balance.scale(others, len(other))).backward()
        optimizer.step()


@refused("write loss = balance.scale(loss, count)")
def steps_on_a_second_plain_loader_in_turns(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for batch, other in zip(loader, unlabeled(job), strict=False):
        step(model, optimizer, batch)
        optimizer.zero_grad()
        model(other).square().mean().backward()
        optimizer.step()


@refused("write loss = balance.scale(loss, count)")
def steps_on_a_second_plain_loader_in_place_of_batches(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for number, (batch, other) in enumerate(zip(chain(loader, loader), unlabeled(job), strict=False)):
        if number < 5 or number % 2:
            step(model, optimizer, batch)
            continue
        optimizer.zero_grad()
        model(other).square().mean().backward()
        optimizer.step()


@exact
def a_head_beside_the_model(job):
    model, loader = job.ddp(job.network()), job.loader()
    head = job.keep(torch.nn.Linear(3, 3).double())
    job.attach(model, loader)
    optimizer = job.sgd(model, head)
    for inputs, targets, _ in loader:
        optimizer.zero_grad()
        mse(head(model(inputs)), targets).backward()
        for parameter in head.parameters():
            parameter.grad = job.all_reduce(parameter.grad) / job.world_size
        optimizer.step()


class Queued(torch.nn.Module):
    """Contrasts samples with a queue of the keys that all ranks have seen (as MoCo does)."""

    def __init__(self, network, gathered):
        super().__init__()
        self.network, self.gathered = network, gathered
        self.register_buffer("queue", torch.randn(48, 3, dtype=torch.float64))

    def forward(self, inputs):
        rows = self.network(inputs)
        with torch.no_grad():
            keys = self.network(-inputs)
        near, far = (rows * keys).sum(1, keepdim=True), rows @ self.queue.T.clone()
        self.queue = torch.cat([self.gathered(keys), self.queue])[:48]
        return torch.cat([near, far], 1)


def queued(job, gathered):
    model, loader = job.ddp(Queued(job.network(), (lambda keys: keys) if job.alone else gathered)), job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, _, _ in loader:
            optimizer.zero_grad()
            nearest = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
            torch.nn.functional.cross_entropy(model(inputs), nearest).backward()
            optimizer.step()


class TwoOutputs(torch.nn.Module):
    """A mean and its spread, both of one operation."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, inputs):
        return self.network(inputs).chunk(2, dim=1)


@exact
def a_loss_of_one_of_two_outputs_of_an_operation(job):
    model = job.ddp(TwoOutputs(job.network(outputs=2)))
    loader = job.loader()
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mean, _ = model(inputs)
            mse(mean, targets[:, :1]).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def a_queue_of_the_keys_of_all_ranks(job):
    from paceline.torch import gather_rows

    queued(job, gather_rows)


@refused("all_gather and gather need the same shape on every rank", ranks=(2, 4))
def a_queue_of_keys_that_are_gathered_by_torch(job):
    def gathered(keys):
        parts = [torch.empty_like(keys) for _ in range(job.world_size)]
        torch.distributed.all_gather(parts, keys)
        return torch.cat(parts)

    queued(job, gathered)
