"""The cases under "What cannot be seen" of ``docs/reference/loops.md``, as balanced jobs: each gets its verdict."""

import torch
import torch.distributed as dist
from cases import CASES, bug  # noqa: F401 (whoever audits this module asks it)
from parts import Points, Texts, counted, language_model, network, ranks, summed_loss, total
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from paceline.torch import BalancedLoader, attach

HEADING = "What cannot be seen"


def balanced(loss_of, *, model=None, dataset=None, ddp=True, optimizer=torch.optim.SGD, prepare=None, scaled=False):
    """Train on a balanced loader; ``scaled`` says that the loss is divided by a count over all ranks."""
    model = model or network()
    model = DistributedDataParallel(model) if ddp else model
    loader = BalancedLoader(dataset or Points(), global_batch=16, seed=0)
    balance = attach(model, loader)
    if prepare:
        prepare(model)
    stepping = optimizer(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            for batch in loader:
                stepping.zero_grad()
                loss = loss_of(model, *batch)
                (balance.scale(loss) if scaled else loss).backward()
                stepping.step()
    finally:
        balance.close()


def mean(model, inputs, targets, classes):
    return functional.mse_loss(model(inputs), targets)


@bug("terms", HEADING)
def a_loss_that_divides_by_class_weights():
    """The divisor is the weight of the classes in the batch."""
    weight = torch.tensor([0.2, 1.0, 5.0])
    balanced(lambda model, inputs, targets, classes: cross_entropy(model(inputs), classes, weight=weight))


@bug("rows", HEADING)
def batch_normalization():
    """Statistics of a rank's own rows."""
    balanced(mean, model=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


@bug("rows", HEADING)
def negatives_within_the_batch():
    """A rank's rows are each other's negatives."""

    def loss_of(model, inputs, targets, classes):
        logits = normalize(model(inputs), dim=-1) @ normalize(targets, dim=-1).T
        return cross_entropy(logits, torch.arange(len(inputs)))

    balanced(loss_of)


@bug("rows", HEADING)
def hard_examples():
    """The half of a rank's rows whose losses are largest."""

    def loss_of(model, inputs, targets, classes):
        losses = (model(inputs) - targets).square().mean(1)
        return losses.topk(max(len(losses) // 2, 1)).values.mean()

    balanced(loss_of)


@bug("rows", HEADING)
def mixup():
    """Every row is mixed with that at the other end of its rank's batch."""

    def loss_of(model, inputs, targets, classes):
        return functional.mse_loss(model(0.7 * inputs + 0.3 * inputs.flip(0)), 0.7 * targets + 0.3 * targets.flip(0))

    balanced(loss_of)


@bug("not_weighted", HEADING)
def a_batch_times_the_ranks():
    """A sum is divided by len(batch) * world_size, in place of the global batch."""

    def loss_of(model, inputs, targets, classes):
        return (model(inputs) - targets).square().sum() / (len(inputs) * ranks()) * ranks()

    balanced(loss_of, scaled=True)


@bug("hooks", HEADING)
def hooks_on_parameters():
    """Gradients are clipped by hooks on parameters, each rank's own."""

    def prepare(model):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))

    balanced(mean, prepare=prepare)


@bug("not_averaged", HEADING)
def gradients_that_nobody_sums():
    """A bare model, whose gradients the script forgets to sum."""
    balanced(mean, ddp=False)


@bug("carried", HEADING)
def a_center_over_all_ranks():
    """A running center is a sum over all ranks divided by len(batch) * world_size."""
    center = torch.zeros(3)

    def loss_of(model, inputs, targets, classes):
        outputs = model(inputs)
        loss = functional.mse_loss(outputs - center, targets)
        total = outputs.detach().sum(0).double()
        dist.all_reduce(total)
        center.mul_(0.5).add_(0.5 * total / (len(inputs) * ranks()))
        return loss

    balanced(loss_of)


@bug("sum", HEADING)
def a_loss_normalized_over_all_ranks():
    """A sum divided by the samples of all ranks, and weighted as if it were a mean."""

    def loss_of(model, inputs, targets, classes):
        samples = torch.tensor(float(targets.numel()))
        dist.all_reduce(samples)
        return (model(inputs) - targets).square().sum() * ranks() / samples

    balanced(loss_of)


@bug("sum", HEADING)
def a_loss_normalized_by_the_tokens_of_all_ranks():
    """A sum divided by the tokens of all ranks, and weighted as if it were a mean."""

    def loss_of(model, tokens, labels):
        return summed_loss(model, tokens, labels) * ranks() / total(counted((tokens, labels)))

    balanced(loss_of, dataset=Texts(), model=language_model())


class Beside(nn.Module):
    """A network of points, and of texts that come from elsewhere."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.points, self.texts = nn.Linear(6, 3), nn.Embedding(20, 3)

    def forward(self, inputs, tokens):
        return self.points(inputs), self.texts(tokens).mean((0, 1))


@bug("failed", HEADING)
def data_from_elsewhere():
    """Texts of another loader go into the same forward pass, which is refused."""
    texts = iter(DataLoader(Texts(), batch_size=2, sampler=DistributedSampler(Texts())))

    def loss_of(model, inputs, targets, classes):
        outputs, beside = model(inputs, next(texts)[0])
        return functional.mse_loss(outputs, targets) + beside.square().mean()

    balanced(loss_of, model=Beside())


def words(samples):
    """Collate samples to texts, in which no tensor is."""
    return [" ".join(map(str, tokens.tolist())) for tokens, _ in samples], [labels for _, labels in samples]


class Reader(nn.Module):
    """A language model that reads texts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def forward(self, texts):
        return self.model(torch.tensor([[int(word) for word in text.split()] for text in texts]))


def computed_again(late):
    """Two passes over each batch of texts, of which the second may come after the next batch is fetched."""
    model = DistributedDataParallel(Reader())
    loader = BalancedLoader(Texts(), global_batch=16, seed=0, collate_fn=words)
    balance = attach(model, loader)

    def backward(texts, labels):
        loss = cross_entropy(model(texts).flatten(0, 1), labels.flatten())
        balance.scale(loss, (labels != -100).sum()).backward()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(loader)
    batch = next(batches)
    try:
        while batch is not None:
            texts, labels = batch[0], torch.stack(batch[1])
            optimizer.zero_grad()
            backward(texts, labels)
            batch = next(batches, None) if late else batch
            backward(texts, labels)
            optimizer.step()
            batch = batch if late else next(batches, None)
    finally:
        balance.close()


@bug(None, HEADING)
def texts_computed_again():
    """Texts are computed again before the next batch is fetched."""
    computed_again(late=False)


@bug(None, HEADING)
def texts_computed_again_late():
    """Texts are computed again after the next batch was fetched."""
    computed_again(late=True)


class ByHand:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= self.lr * parameter.grad


@bug("no_steps", HEADING)
def an_optimizer_of_ones_own():
    """Gradients are averaged by hand, and stepped on by no torch optimizer."""
    balanced(mean, optimizer=ByHand)


@bug("not_a_number", HEADING)
def a_rank_without_any_term():
    """Only samples of the last class count, and a rank may have none."""

    class Rare(Points):
        def __init__(self):
            super().__init__()
            self.classes = torch.where(torch.arange(len(self.inputs)) % 23 == 0, 2, 0)

    def loss_of(model, inputs, targets, classes):
        losses = (model(inputs) - targets).square().mean(1)
        return (losses * (classes == 2)).sum() / (classes == 2).sum()

    balanced(loss_of, dataset=Rare())


@bug("uneven", HEADING)
def a_state_from_batch_to_batch():
    """A recurrent state needs batches of one size."""
    state = [torch.zeros(())]

    def loss_of(model, inputs, targets, classes):
        outputs = model(inputs) + 0.1 * state[0]
        state[0] = outputs.detach()
        return functional.mse_loss(outputs, targets)

    balanced(loss_of)
