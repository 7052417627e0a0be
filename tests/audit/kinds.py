"""Random samples and kinds of mistakes, each as a small script with the cause that an audit must name."""

import copy
import random

import numpy as np
import torch
import torch.distributed as dist
from cases import Case
from parts import IGNORED, Points, Texts, language_model, loader_of, network, summed_loss, token_mean, total, trained
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import LoadBalancer
from paceline.predictors import Auto
from paceline.torch import BalancedLoader, StreamLoader, attach
from paceline.torch.state_lists import to_lists

CASES: dict[str, Case] = {}


def kind(cause, name=None):
    """Register a script with its cause, None if it is exact."""

    def register(run):
        CASES[name or run.__name__] = Case(run, cause, "", run.__doc__ or "")
        return run

    return register


def balanced(loss_of, dataset, model=None, collate=None, resumed=None):
    """Train on a balanced loader: ``loss_of(model, *batch)``; ``resumed`` is a state to begin with, or parts of one."""
    model = DistributedDataParallel(model or network())
    loader = BalancedLoader(dataset, global_batch=16, seed=0, collate_fn=collate)
    balance = attach(model, loader)
    if resumed:
        balance.load_state_dict(balance.state_dict() | resumed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, *batch).backward()
            optimizer.step()
    finally:
        balance.close()


def plain(loss_of, dataset, model=None, collate=None):
    """Train on a DataLoader."""

    def of_window(model, window, place):
        return loss_of(model, *window[place])

    trained(of_window, dataset=dataset, model=model or network(), loader=lambda: loader_of(dataset, collate_fn=collate))


def mean(model, inputs, targets, classes):
    return functional.mse_loss(model(inputs), targets)


def by_class(model, inputs, targets, classes):
    return cross_entropy(model(inputs), classes, weight=torch.tensor([0.2, 1.0, 5.0]))


# -- samples that are flipped at random ------------------------------------------------------------------------------


class Flipped(Points):
    """Points, flipped at random as they are loaded."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def __getitem__(self, index):
        inputs, targets, classes = super().__getitem__(index)
        return (inputs.flip(0) if self.draw() < 0.5 else inputs), targets, classes


def own_torch():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return lambda: float(torch.rand((), generator=generator))


DRAWS = {  # each makes a function that draws
    "torch": lambda: lambda: float(torch.rand(())),
    "numpy": lambda: np.random.rand,
    "python": lambda: random.random,
    "a torch generator": own_torch,
    "a numpy generator": lambda: np.random.default_rng(dist.get_rank()).random,
    "a python generator": lambda: random.Random(dist.get_rank()).random,
}
for name, draw in DRAWS.items():
    for loop in (balanced, plain):
        for loss_of, cause in ((mean, None), (by_class, "terms")):
            kind(cause, f"flips of {name}, {loop.__name__} {loss_of.__name__}")(
                lambda loop=loop, loss_of=loss_of, draw=draw: loop(loss_of, Flipped(draw()))
            )


def noisy(model, inputs, targets, classes):
    return mean(model, inputs * torch.rand(len(inputs), 1), targets, classes)


def noisy_collate(samples):
    inputs, targets, classes = torch.utils.data.default_collate(samples)
    return inputs * torch.rand(len(inputs), 1), targets, classes


for loop in (balanced, plain):
    kind("chance", f"noise in the loop, {loop.__name__}")(lambda loop=loop: loop(noisy, Points()))
    kind("chance", f"noise in collate_fn, {loop.__name__}")(
        lambda loop=loop: loop(mean, Points(), collate=noisy_collate)
    )


for loop in (balanced, plain):
    for loss_of, cause in ((mean, None), (by_class, "terms")):
        data = [torch.utils.data.Subset(Flipped(random.random), range(90)), Flipped(lambda: float(torch.rand(())))]
        kind(cause, f"flips in joined datasets, {loop.__name__} {loss_of.__name__}")(
            lambda loop=loop, loss_of=loss_of, data=data: loop(loss_of, torch.utils.data.ConcatDataset(data))
        )


class FlippedStream(torch.utils.data.IterableDataset):
    """Numbered points, flipped as they are read."""

    def __iter__(self):
        for number in range(96):
            inputs, targets, classes = Flipped(random.random)[number]
            yield inputs, targets, classes, number


def of_stream(loss_of):
    """Train on a stream that is known by its numbers."""
    model = DistributedDataParallel(network())
    loader = StreamLoader(FlippedStream(), global_batch=16, key=lambda sample: sample[3])
    balance = attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for inputs, targets, classes, _ in loader:
            optimizer.zero_grad()
            loss_of(model, inputs, targets, classes).backward()
            optimizer.step()
    finally:
        balance.close()


kind(None, "flips in a stream, mean")(lambda: of_stream(mean))
kind("unknown", "flips in a stream, by_class")(lambda: of_stream(by_class))  # it cannot be probed


# -- ways to load and to step ----------------------------------------------------------------------------------------


class LoadedTogether(Flipped):
    """Points of which many are asked for at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(torch.utils.data.IterableDataset):
    """The points of one rank, one after the other."""

    def __iter__(self):
        points = Points()
        return (points[number] for number in range(dist.get_rank(), len(points), dist.get_world_size()))


def of_dataset(dataset, loss_of, **options):
    trained(
        lambda model, window, place: loss_of(model, *window[place]),
        dataset=dataset,
        model=network(),
        loader=lambda: torch.utils.data.DataLoader(dataset, **options),
    )


for loss_of, cause in ((mean, None), (by_class, "terms")):
    for loop in (balanced, plain):
        kind(cause, f"samples loaded together, {loop.__name__} {loss_of.__name__}")(
            lambda loop=loop, loss_of=loss_of: loop(loss_of, LoadedTogether(random.random))
        )
    kind(cause, f"a stream in a DataLoader, {loss_of.__name__}")(
        lambda loss_of=loss_of: of_dataset(Stream(), loss_of, batch_size=5)
    )


class Dropping(nn.Module):
    """Dropout in a recurrent layer and in attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.GRU(6, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, inputs):
        found, _ = self.layers(inputs[:, None].expand(-1, 4, -1))
        return self.last(self.attention(found, found, found)[0].mean(1))


@kind(None)
def dropout_of_every_kind():
    """Dropout is off, so that it makes no difference where a sample is."""
    balanced(mean, Points(), Dropping())


@kind("terms")
def a_step_with_a_closure():
    """Gradients are computed within the optimizer's step."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    for batch in loader_of(Points()):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = by_class(model, *batch)
            loss.backward()
            return loss

        optimizer.step(closure)


# -- causes ----------------------------------------------------------------------------------------------------------


def averaged(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@kind("hooks")
def clipped_by_hand_before_gradients_are_summed():
    """Each rank clips its own gradients by a computation of its own."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets, _ in loader_of(Points()):
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= max(float(parameter.grad.norm()) / 0.05, 1.0)
        averaged(model)
        optimizer.step()


@kind("ranks")
def a_teacher_that_only_one_rank_updates():
    """A teacher follows the model on rank 0 alone."""
    model = DistributedDataParallel(network())
    teacher = copy.deepcopy(model.module).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets, _ in loader_of(Points()):
        optimizer.zero_grad()
        outputs = model(inputs)
        (functional.mse_loss(outputs, targets) + functional.mse_loss(outputs, teacher(inputs))).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
                own.data.lerp_(other.data, 0.5)


class Sparse(Texts):
    """Texts, of which every third has no token that counts."""

    def __init__(self):
        super().__init__()
        self.labels[::3] = IGNORED


def masked(model, tokens, labels):
    return summed_loss(model, tokens, labels) / max(int((labels != IGNORED).sum()), 1)


for loop in (balanced, plain):
    kind("terms", f"a masked sum over a local count, {loop.__name__}")(
        lambda loop=loop: loop(masked, Sparse(), language_model())
    )


def without_the_last_class(samples):
    kept = [sample for sample in samples if sample[2] != 2]
    return torch.utils.data.default_collate(kept or samples[:1])


@kind("terms")
def a_filter_in_collate_fn():
    """The collate function leaves samples out."""
    plain(mean, Points(), collate=without_the_last_class)


class Graph:
    """Nodes with features and targets."""

    def __init__(self, nodes, targets):
        self.nodes, self.targets = nodes, targets


class Graphs(torch.utils.data.Dataset):
    """Graphs of two to eight nodes."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        nodes = 2 + (index * 5) % 7
        return Graph(torch.randn(nodes, 6, generator=chance), torch.randn(nodes, 3, generator=chance))


def joined(graphs):
    return torch.cat([one.nodes for one in graphs]), torch.cat([one.targets for one in graphs])


def of_nodes(model, nodes, targets):
    return functional.mse_loss(model(nodes), targets)


@kind("terms")
def a_mean_over_the_nodes_of_graphs():
    """Samples are objects, whose rows the collate function joins."""
    plain(of_nodes, Graphs(), collate=joined)


@kind("terms")
def a_mean_over_the_nodes_of_graphs_clipped_by_hand():
    """Gradients that are summed already are clipped by the script, which is right; the loss is not."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for nodes, targets in loader_of(Graphs(), collate_fn=joined):
        optimizer.zero_grad()
        of_nodes(model, nodes, targets).backward()
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad /= max(float(norm) / 0.05, 1.0)
        optimizer.step()


def hooked(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient)
    return model


@kind("rows")
def batch_normalization_beside_a_hook_that_changes_nothing():
    """A hook that only looks is not the cause."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    plain(mean, Points(), hooked(model))


@kind("different_data")
def random_samples_without_a_seed():
    """Each rank makes a dataset of its own, as the tutorial of DistributedDataParallel does, where no rank differs."""
    torch.manual_seed(dist.get_rank())
    balanced(mean, torch.utils.data.TensorDataset(torch.randn(48, 6), torch.randn(48, 3), torch.zeros(48)))


def accumulated(loss_of, dataset, model):
    """Train as trainers do: they set the number of micro-batches when the loader is there already."""
    model = DistributedDataParallel(model)
    loader = BalancedLoader(dataset, global_batch=6, seed=0)
    loader.accumulate = 2
    balance = attach(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first_rank = dist.get_rank() == 0
    try:
        for number, batch in enumerate(loader):
            (loss_of(model, batch, number % 2, first_rank) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    finally:
        balance.close()


@kind(None)
def accumulation_that_is_set_later():
    """A mean over samples."""
    accumulated(lambda model, batch, micro, first: mean(model, *batch), Points(), network())


@kind("terms")
def accumulation_of_token_means():
    """A mean over the tokens of each rank's micro-batch."""
    accumulated(lambda model, batch, micro, first: token_mean(model, *batch), Texts(), language_model())


@kind("sum")
def accumulation_over_the_samples_of_all_ranks():
    """A sum divided by the samples of a micro-batch on all ranks, weighted as a mean."""

    def loss_of(model, batch, micro, first):
        inputs, targets, _ = batch
        return (model(inputs) - targets).square().sum() * dist.get_world_size() / total(torch.tensor(len(inputs)))

    accumulated(loss_of, Points(), network())


@kind("micro_batches")
def accumulation_with_a_first_micro_batch_that_counts_more():
    """The first micro-batch has another weight than the second."""
    accumulated(lambda model, batch, micro, first: mean(model, *batch) * (1.5 - micro), Points(), network())


@kind("ranks")
def accumulation_with_a_first_rank_that_counts_more():
    """The first rank has another weight than the others."""
    accumulated(lambda model, batch, micro, first: mean(model, *batch) * (1.5 - (not first)), Points(), network())


SAVED = {"balancer": to_lists(LoadBalancer(Auto(), workers=["a:0", "a:1"], global_batch=16).state_dict())}


@kind(None)
def a_job_resumed_from_a_checkpoint():
    """Its predictor is another one than that by which an audit makes sizes uneven."""
    balanced(mean, Points(), resumed=SAVED)
