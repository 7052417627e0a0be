"""What the loss is made of."""

import torch
from job import DEVICE, EPOCHS, GLOBAL_BATCH, mse
from shapes_order import begun
from verdicts import exact, refused, warned


def trained(job, loss_of, *, network=None, kind="mean", epochs=EPOCHS, **options):
    """Train with the loss that ``loss_of(model, inputs, targets)`` returns."""
    model, loader = job.ddp(network or job.network(), **options), job.loader()
    balance, optimizer = job.attach(model, loader, loss=kind), job.sgd(model, rate=0.05)
    for _ in range(epochs):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            (balance.scale(loss) if kind == "scaled" else loss).backward()
            optimizer.step()


def summed(job):
    # A rank alone takes the sum over all: averaging over the ranks divides by their number.
    return lambda model, inputs, targets: (model(inputs) - targets).square().sum() * job.world_size / 100


def per_token(job):
    """Tokens normalised by hand: divided by those of all ranks, times the number of ranks."""

    def loss_of(model, inputs, targets):
        tokens = job.all_reduce(torch.tensor(float(targets.numel())))
        return (model(inputs) - targets).square().sum() * job.world_size / tokens

    return loss_of


@exact
def a_mean_taken_by_hand(job):
    trained(job, lambda model, inputs, targets: (model(inputs) - targets).square().sum() / targets.numel())


@exact
def a_mean_of_losses_that_are_not_reduced(job):
    trained(
        job,
        lambda model, inputs, targets: torch.nn.functional.mse_loss(model(inputs), targets, reduction="none").mean(),
    )


@warned("grow with its number of samples")
def a_summed_loss(job):
    trained(job, summed(job), epochs=10)


@exact
def a_summed_loss_averaged_plainly(job):
    trained(job, summed(job), kind="sum")


@warned("grow with its number of samples")
def tokens_normalised_over_all_ranks(job):
    trained(job, per_token(job), epochs=4)


@exact
def tokens_normalised_over_all_ranks_averaged_plainly(job):
    trained(job, per_token(job), kind="sum")


@warned("do not grow with its number of samples")
def a_mean_loss_averaged_plainly(job):
    trained(job, lambda model, inputs, targets: mse(model(inputs), targets), kind="sum", epochs=4)


@warned("grow faster than its number of samples")
def a_summed_loss_that_is_scaled(job):
    trained(job, summed(job), kind="scaled", epochs=4)


@exact(ranks=(2, 4))
def a_weighted_loss(job):
    trained(job, lambda model, inputs, targets: mse(model(inputs), targets), kind="scaled")


@refused("needs balance.scale(loss)")
def a_weighted_loss_that_is_not_scaled(job):
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader, loss="scaled")
    for inputs, targets, _ in loader:
        mse(model(inputs), targets).backward()


@exact
def a_penalty_on_the_parameters(job):
    def loss_of(model, inputs, targets):
        return mse(model(inputs), targets) + 0.01 * sum(p.square().sum() for p in model.parameters())

    trained(job, loss_of)


@exact
def a_part_of_the_loss_kept_in_the_model(job):
    class Routed(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, inputs):
            outputs = self.inner(inputs)
            self.balance = outputs.square().mean()
            return outputs

    network = Routed(job.network())
    trained(job, lambda model, inputs, targets: mse(model(inputs), targets) + 0.1 * network.balance, network=network)


@exact
def a_model_that_returns_its_loss(job):
    class WithLoss(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, inputs, labels):
            outputs = self.inner(inputs)
            return {"loss": mse(outputs, labels), "logits": outputs}

    trained(job, lambda model, inputs, targets: model(inputs, labels=targets)["loss"], network=WithLoss(job.network()))


@exact
def a_gradient_penalty(job):
    def loss_of(model, inputs, targets):
        inputs = inputs.clone().requires_grad_()
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return mse(outputs, targets) + 0.1 * (slope.square().sum(1) - 1).square().mean()

    trained(job, loss_of)


@exact
def two_forward_passes_over_one_batch(job):
    def loss_of(model, inputs, targets):
        return mse(model(inputs), targets) + mse(model(-inputs), -targets)

    trained(job, loss_of)


@exact
def two_views_of_a_batch_in_one_forward_pass(job):
    def loss_of(model, inputs, targets):
        return mse(model(torch.cat([inputs, -inputs])), torch.cat([targets, -targets]))

    trained(job, loss_of)


@exact
def two_losses_with_a_backward_pass_each(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            with job.no_sync(model):
                mse(model(inputs), targets).backward()
            model(inputs).abs().mean().backward()
            optimizer.step()


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


@exact
def time_comes_first_in_the_inputs(job):
    def loss_of(model, inputs, targets):
        return mse(model(torch.stack([inputs, 2 * inputs, 3 * inputs])), targets)

    trained(job, loss_of, network=TimeFirst(job.network()))


@exact
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
def inputs_in_which_no_size_can_be_seen(job):
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
    trained(job, both_towers(job), kind="scaled")


@refused("a collective inside the backward pass")
def a_contrastive_loss_whose_gradients_are_weighted(job):
    trained(job, both_towers(job))
