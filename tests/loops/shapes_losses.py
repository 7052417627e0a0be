"""Losses."""

import torch
from composed import composed_shapes
from job import DEVICE, EPOCHS, GLOBAL_BATCH, Samples, mse
from shapes_order import begun
from verdicts import exact, refused, warned

shape = composed_shapes(__name__)
LINE = "write loss = balance.scale(loss, count)"


def trained(job, loss_of, *, network=None, scaled=None, epochs=EPOCHS, **options):
    """Train with the loss that ``loss_of(model, inputs, targets)`` returns, scaled by ``scaled(balance, loss, n)``."""
    model, loader = job.ddp(network or job.network(), **options), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model, rate=0.05)
    for _ in range(epochs):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            (scaled(balance, loss, len(inputs)) if scaled else loss).backward()
            optimizer.step()


def by_samples(balance, loss, count):
    return balance.scale(loss, count)


def plainly(balance, loss, count):
    return balance.scale(loss)


def summed(job):
    # A rank alone takes the sum over all: averaging over the ranks divides by their number.
    return lambda model, inputs, targets: (model(inputs) - targets).square().sum() * job.world_size / 100


def per_token(job):
    """Tokens normalized by hand: divided by those of all ranks, times the number of ranks."""

    def loss_of(model, inputs, targets):
        tokens = job.all_reduce(torch.tensor(float(targets.numel())))
        return (model(inputs) - targets).square().sum() * job.world_size / tokens

    return loss_of


@exact
def a_mean_taken_by_hand(job):
    trained(job, lambda model, inputs, targets: (model(inputs) - targets).square().sum() / targets.numel())


@warned("grow with its number of samples")
def a_summed_loss(job):
    trained(job, summed(job), epochs=10)


@exact
def a_summed_loss_averaged_plainly(job):
    trained(job, summed(job), scaled=plainly)


@warned("grow with its number of samples")
def tokens_normalized_over_all_ranks(job):
    trained(job, per_token(job), epochs=4)


@exact
def tokens_normalized_over_all_ranks_averaged_plainly(job):
    trained(job, per_token(job), scaled=plainly)


@exact(ranks=(2, 4))
def a_scaled_loss(job):
    trained(job, lambda model, inputs, targets: mse(model(inputs), targets), scaled=by_samples)


@refused("some of this step's losses are scaled and others are not")
def losses_of_which_some_are_scaled(job):
    """In another backward pass of the step."""
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader)
    for inputs, targets, _ in loader:
        with job.no_sync(model):
            balance.scale(mse(model(inputs), targets), len(inputs)).backward()
        model(inputs).square().mean().backward()


@refused("losses that balance.scale() has scaled and others that it has not")
def a_term_of_the_loss_that_is_not_scaled(job):
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader)
    for inputs, targets, _ in loader:
        (balance.scale(mse(model(inputs), targets), len(inputs)) + model(inputs).square().mean()).backward()


@refused("losses that balance.scale() has scaled and others that it has not")
def a_penalty_that_is_not_scaled(job):
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader)
    for inputs, targets, _ in loader:
        penalty = sum(one.square().sum() for one in model.parameters())
        (balance.scale(mse(model(inputs), targets), len(inputs)) + penalty).backward()


@refused("scaled and others are not, or not on every rank")
def a_loss_that_only_one_rank_scales(job):
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader)
    for inputs, targets, _ in loader:
        loss = mse(model(inputs), targets)
        (balance.scale(loss, len(inputs)) if job.rank else loss).backward()


@refused("scale each loss once")
def a_loss_that_is_scaled_twice(job):
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader)
    for inputs, targets, _ in loader:
        balance.scale(balance.scale(mse(model(inputs), targets), len(inputs)), len(inputs)).backward()


shape("a_penalty_on_the_parameters", penalty="parameters")
shape("a_part_of_the_loss_kept_in_the_model", kept_in_the_model=True)
shape("a_model_that_returns_its_loss", output="loss")
shape("a_gradient_penalty", penalty="slope")
shape("two_forward_passes_over_one_batch", second_pass="noise")
shape("two_views_of_a_batch_in_one_forward_pass", "refused", LINE, rows="views")
shape("two_views_of_a_batch_in_one_scaled_loss", rows="views", line="scale")
shape("two_losses_with_a_backward_pass_each", second_pass="noise", backward="each")


@exact
def a_forward_pass_without_gradients_before_training(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                model(inputs[:1])
            mse(model(inputs), targets).backward()
            optimizer.step()


@exact
def losses_summed_over_the_ranks_for_the_log(job):
    def loss_of(model, inputs, targets):
        loss = mse(model(inputs), targets)
        job.all_reduce(loss)
        return loss

    trained(job, loss_of)


class TimeFirst(torch.nn.Module):
    """A model of sequences ``[T, n, features]``."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, sequence):
        return self.inner(sequence.mean(0))


shape("time_comes_first_in_the_inputs", "refused", LINE, rows="time first")
shape("time_comes_first_in_the_inputs_of_a_scaled_loss", rows="time first", line="scale")


@refused("write loss = balance.scale(loss, count)")
def time_comes_first_with_as_many_steps_as_samples(job):
    def loss_of(model, inputs, targets):
        steps = GLOBAL_BATCH // 2  # each of two ranks has as many samples at first
        return mse(model(torch.stack([inputs * step for step in range(steps)])), targets)

    trained(job, loss_of, network=TimeFirst(job.network()))


@exact
def a_list_of_images(job):
    class Detector(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            return self.inner(torch.stack(images))

    trained(job, lambda model, inputs, targets: mse(model(list(inputs)), targets), network=Detector(job.network()))


@exact
def inputs_in_an_object(job):
    class Graph:
        def __init__(self, nodes):
            self.nodes = nodes

    class OnGraphs(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, graph):
            return self.inner(graph.nodes)

    trained(job, lambda model, inputs, targets: mse(model(Graph(inputs)), targets), network=OnGraphs(job.network()))


def first_row(count):
    from torch import distributed

    counts = [torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, torch.tensor([count], device=DEVICE))
    return int(sum(counts[: distributed.get_rank()]))


def both_towers(job):
    """CLIP's loss with both towers in the model, gathered with their gradients."""
    from paceline.torch import gather_rows

    def loss_of(model, inputs, targets):
        mine = model(inputs)
        everybody = mine if job.alone else gather_rows(mine)
        first = 0 if job.alone else first_row(len(inputs))
        own = torch.arange(first, first + len(inputs), device=DEVICE)
        return torch.nn.functional.cross_entropy(10 * mine @ everybody.T, own)

    return loss_of


@exact(ranks=(2, 4))
def a_contrastive_loss_over_all_ranks(job):
    trained(job, both_towers(job))


@exact
def a_scaled_contrastive_loss_over_all_ranks(job):
    trained(job, both_towers(job), scaled=by_samples)


class Concatenated(torch.utils.data.Dataset):
    """Samples of several rows each."""

    def __init__(self):
        self.counts = [2 + index % 7 for index in range(103)]

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        rows = torch.randn(self.counts[index], 9, generator=chance, dtype=torch.float64)
        return rows[:, :6], rows[:, 6:], index


def concatenated(samples):
    return torch.cat([one[0] for one in samples]), torch.cat([one[1] for one in samples]), [one[2] for one in samples]


def of_rows(job, scaled):
    """A mean over the rows of all samples."""
    data = Concatenated()
    model, loader = job.ddp(job.network()), job.loader(Samples())
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for _, _, numbers in loader:
        inputs, targets, _ = concatenated([data[number] for number in numbers.tolist()])
        optimizer.zero_grad()
        loss = mse(model(inputs), targets)
        (balance.scale(loss, len(inputs)) if scaled else loss).backward()
        optimizer.step()


@refused("write loss = balance.scale(loss, count)")
def concatenated_rows(job):
    of_rows(job, False)


@exact(ranks=(2, 4))
def concatenated_rows_of_a_scaled_loss(job):
    of_rows(job, True)


def in_parts(job, scaled, size=4):
    """The batch of a rank in parts of some rows, of which ranks have different numbers."""
    model, loader = job.ddp(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for inputs, targets, _ in loader:
        optimizer.zero_grad()
        parts = [(inputs, targets)] if job.alone else list(zip(inputs.split(size), targets.split(size), strict=True))
        for number, (some, wanted) in enumerate(parts, 1):
            with job.no_sync(model, number == len(parts)):
                loss = mse(model(some), wanted)
                (balance.scale(loss, len(some)) if scaled else loss * len(some) / len(inputs)).backward()
        optimizer.step()


@refused("write loss = balance.scale(loss, count)")
def a_batch_in_parts(job):
    in_parts(job, False)


@exact(ranks=(2, 4))
def a_batch_in_scaled_parts(job):
    in_parts(job, True)
