"""Published bugs whose losses are divided by what one rank, or one micro-batch, holds."""

from itertools import islice

import torch
import torch.distributed as dist
from cases import bug, fix
from parts import IGNORED, Texts, counted, language_model, loader_of, ranks, summed_loss, token_mean, total, trained
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.parallel import DistributedDataParallel


def over_all_tokens(model, window, place):
    """The sum of a micro-batch over the tokens of the whole step; averaging divides by the ranks."""
    return summed_loss(model, *window[place]) * ranks() / total(sum(counted(batch) for batch in window))


@bug("terms", "huggingface/transformers#34242")
def tokens_of_a_rank():
    """Tokens are counted over the micro-batches of a step, but on each rank alone."""
    trained(
        lambda model, window, place: summed_loss(model, *window[place]) / sum(counted(batch) for batch in window),
        accumulate=2,
    )


@fix(tokens_of_a_rank)
def tokens_of_all_ranks():
    trained(over_all_tokens, accumulate=2)


@bug("terms", "huggingface/transformers#24725")
def mean_of_means():
    """The model returns a mean over tokens, which is divided by the number of micro-batches."""
    trained(lambda model, window, place: token_mean(model, *window[place]) / len(window), accumulate=3)


@fix(mean_of_means)
def mean_over_the_step():
    trained(over_all_tokens, accumulate=3)


def sharded(loss_of):
    """Train a fully sharded model."""
    model = language_model()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens, labels in loader_of(Texts()):
        optimizer.zero_grad()
        loss_of(model, tokens, labels).backward()
        optimizer.step()


@bug("terms", "pytorch/torchtitan#2206")
def valid_tokens_of_a_shard():
    """A sharded model averages gradients over the ranks; each rank divides by its own valid tokens."""
    sharded(token_mean)


@fix(valid_tokens_of_a_shard)
def valid_tokens_of_all_shards():
    sharded(lambda model, *batch: over_all_tokens(model, [batch], 0))


@bug("terms", "PrimeIntellect-ai/prime-rl#1960")
def masked_mean():
    """Losses are selected by a mask and averaged on each rank."""

    def loss_of(model, window, place):
        tokens, labels = window[place]
        logits = model(tokens).flatten(0, 1)
        losses = cross_entropy(logits, labels.clamp(min=0).flatten(), reduction="none")
        return losses[(labels != IGNORED).flatten()].mean()

    trained(loss_of)


@fix(masked_mean)
def masked_sum():
    trained(over_all_tokens)


def scaled_afterwards(scale_of, factor):
    """Divide losses by a scale, and multiply gradients after the micro-batches."""
    model = DistributedDataParallel(language_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(loader_of(Texts()))
    while len(window := list(islice(batches, 2))) == 2:
        scale = scale_of(sum(counted(batch) for batch in window))
        for batch in window:
            (summed_loss(model, *batch) / scale).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(factor())
        optimizer.step()
        optimizer.zero_grad()


@bug("terms", "PrimeIntellect-ai/prime-rl#2562")
def local_loss_scale():
    """Each rank divides its sum by its own number of unmasked tokens before gradients are averaged."""
    scaled_afterwards(lambda local: max(local, 1), lambda: 1.0)


@fix(local_loss_scale)
def global_loss_scale():
    scaled_afterwards(total, ranks)


def advantages(labels):
    return 0.5 + labels.clamp(min=0).double() / 20


@bug("terms", "NovaSky-AI/SkyRL#925")
def policy_loss_by_micro_batch():
    """A policy loss is a masked mean of each micro-batch, averaged over micro-batches and workers."""

    def loss_of(model, window, place):
        tokens, labels = window[place]
        chosen = log_softmax(model(tokens), -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        mask = labels != IGNORED
        return -(chosen * advantages(labels) * mask).sum() / mask.sum() / len(window)

    trained(loss_of, accumulate=2)


@fix(policy_loss_by_micro_batch)
def policy_loss_by_normalized_advantages():
    def loss_of(model, window, place):
        tokens, labels = window[place]
        chosen = log_softmax(model(tokens), -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        normalized = advantages(labels) / total(sum(counted(batch) for batch in window)) * ranks()
        return -(chosen * normalized * (labels != IGNORED)).sum()

    trained(loss_of, accumulate=2)


def packed(samples):
    """Join samples to one row."""
    return tuple(torch.cat([sample[part] for sample in samples])[None] for part in (0, 1))


def of_packs(divide):
    def loss_of(model, window, place):
        tokens, labels = window[place]
        losses = cross_entropy(model(tokens).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        return divide(losses, labels != IGNORED)

    trained(loss_of, loader=lambda: loader_of(Texts(), collate_fn=packed))


@bug("terms", "vllm-project/speculators#942")
def supervised_tokens_of_a_pack():
    """Packs hold as many tokens but not as many supervised ones, by which each rank divides its own."""
    of_packs(lambda losses, mask: (losses.sum(dim=1) / (mask.sum(dim=1) + 1e-9)).mean())


@fix(supervised_tokens_of_a_pack)
def supervised_tokens_of_all_packs():
    of_packs(lambda losses, mask: losses.sum() / total(mask.sum()) * ranks())


@bug("terms", "allenai/open-instruct#1161")
def denominator_of_a_minibatch():
    """The denominator of a masked mean is the minibatch's, where the group of minibatches makes the step."""

    def loss_of(model, window, place):
        tokens, labels = window[place]
        return summed_loss(model, tokens, labels) / total(counted((tokens, labels))) * ranks() / len(window)

    trained(loss_of, accumulate=3)


@fix(denominator_of_a_minibatch)
def denominator_of_a_group():
    trained(over_all_tokens, accumulate=3)


def divergence(model, teacher, tokens):
    """Jensen-Shannon divergence to a teacher, of each token."""
    ours, theirs = log_softmax(model(tokens), -1), log_softmax(teacher(tokens), -1)
    middle = torch.logaddexp(ours, theirs) - torch.log(torch.tensor(2.0))
    return ((ours.exp() * (ours - middle)).sum(-1) + (theirs.exp() * (theirs - middle)).sum(-1)) / 2


def distilled(scale_of):
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).requires_grad_(False)

    def loss_of(model, window, place):
        tokens, labels = window[place]
        return (divergence(model, teacher, tokens) * (labels != IGNORED)).sum() / scale_of(window, place)

    trained(loss_of, accumulate=2)


@bug("terms", "modelscope/ms-swift#10165")
def divergence_of_a_micro_batch():
    """A distillation loss is divided by the valid tokens of each micro-batch, and then averaged twice."""
    distilled(lambda window, place: counted(window[place]) * len(window))


@fix(divergence_of_a_micro_batch)
def divergence_of_the_step():
    distilled(lambda window, place: total(sum(counted(batch) for batch in window)) / ranks())


@bug("terms", "verl-project/verl#5625")
def samples_over_means():
    """A token mean of each micro-batch is scaled by its share of the samples."""

    def loss_of(model, window, place):
        share = len(window[place][0]) / sum(len(tokens) for tokens, _ in window)
        return token_mean(model, *window[place]) * share

    trained(loss_of, accumulate=2)


@fix(samples_over_means)
def tokens_over_sums():
    trained(over_all_tokens, accumulate=2)


class Boxes(torch.utils.data.Dataset):
    """Images, boxes of which different numbers are there, and which."""

    def __init__(self, count=96):
        chance = torch.Generator().manual_seed(3)
        self.images = torch.randn(count, 6, generator=chance)
        self.boxes = torch.randn(count, 5, 4, generator=chance)
        self.there = torch.arange(5) < torch.randint(1, 6, (count, 1), generator=chance)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "boxes": self.boxes[index], "present": self.there[index]}


def detected(number_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 20))

    def loss_of(model, window, place):
        batch = window[place]
        found = model(batch["image"]).view(-1, 5, 4)
        apart = (found - batch["boxes"]).abs().sum(-1)
        return (apart * batch["present"]).sum() / number_of(batch["present"].sum())

    trained(loss_of, dataset=Boxes(), model=model)


@bug("terms", "facebookresearch/detr#267")
def boxes_of_a_rank():
    """Losses of boxes are divided by the number of boxes on each rank."""
    detected(lambda boxes: boxes.clamp(min=1))


@fix(boxes_of_a_rank)
def boxes_of_all_ranks():
    detected(lambda boxes: (total(boxes) / dist.get_world_size()).clamp(min=1))


@bug("terms", "huggingface/trl#3231")
def completions_of_a_device():
    """A policy loss is divided by the completion tokens of the device."""
    trained(lambda model, window, place: summed_loss(model, *window[place]) / max(counted(window[place]), 1))


@fix(completions_of_a_device)
def completions_by_a_constant():
    trained(lambda model, window, place: summed_loss(model, *window[place]) / window[place][0].numel())
