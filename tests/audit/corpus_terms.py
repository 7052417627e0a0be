"""Published bugs whose losses are divided by what one rank, or one micro-batch, holds."""

import torch
import torch.distributed as dist
from cases import bug, fix
from parts import IGNORED, Texts, counted, language_model, loader_of, ranks, summed_loss, token_mean, total, trained
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy


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
