"""Published bugs of rows that see each other, gradients that are not averaged, factors, and data."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from cases import bug, fix
from parts import Points, counted, loader_of, network, ranks, summed_loss, total, trained
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def mean_of(model, window, place):
    inputs, targets, _ = window[place]
    return functional.mse_loss(model(inputs), targets)


# -- rows that see each other ----------------------------------------------------------------------------------------


@bug("rows", "Lightning-AI/pytorch-lightning#6789")
def statistics_of_a_rank():
    """Batch normalization takes the statistics of each rank's rows."""
    trained(mean_of, dataset=Points(), model=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


@fix(statistics_of_a_rank)
def statistics_of_a_layer():
    trained(mean_of, dataset=Points(), model=nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)))


def contrasted(gather):
    def loss_of(model, window, place):
        inputs, targets, _ = window[place]
        queries = normalize(model(inputs), dim=-1)
        own = normalize(targets, dim=-1) + 0.1 * queries  # keys that depend on the model too
        keys = gather(own)
        first = dist.get_rank() * len(own) if len(keys) > len(own) else 0
        return cross_entropy(queries @ keys.T / 0.5, torch.arange(first, first + len(own)))

    trained(loss_of, dataset=Points(), model=network())


@bug("rows", "facebookresearch/vissl#474")
def negatives_of_a_rank():
    """A contrastive loss takes its negatives from the rows of its own rank."""
    contrasted(lambda own: own)


def gathered(own):
    return torch.cat(torch.distributed.nn.functional.all_gather(own))


@fix(negatives_of_a_rank)
def negatives_of_all_ranks():
    contrasted(gathered)


def gathered_without_gradients(own):
    parts = [torch.zeros_like(own) for _ in range(ranks())]
    dist.all_gather(parts, own.detach().contiguous())
    parts[dist.get_rank()] = own
    return torch.cat(parts)


@bug("rows", "lightly-ai/lightly#1528")
def gradients_that_stay_on_a_rank():
    """Rows of all ranks are gathered, but gradients of those that other ranks use do not come back."""
    contrasted(gathered_without_gradients)


@fix(gradients_that_stay_on_a_rank)
def gradients_that_come_back():
    contrasted(gathered)


# -- gradients that are not averaged ---------------------------------------------------------------------------------


def stepped(forward_of, accumulate=1, context=lambda model, place: nullcontext()):
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for place, (inputs, targets, _) in enumerate(loader_of(Points())):
        with context(model, place):
            (functional.mse_loss(forward_of(model)(inputs), targets) / accumulate).backward()
        if (place + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


@bug("not_averaged", "jingyaogong/minimind#854")
def the_module_is_called():
    """The forward pass goes through .module, so no gradient is summed over the ranks."""
    stepped(lambda model: model.module)


@fix(the_module_is_called)
def the_model_is_called():
    stepped(lambda model: model)


@bug("not_averaged", "modelscope/FunASR#3472")
def the_first_micro_batch_is_summed():
    """no_sync() is left in the first micro-batch of a step and not in its last."""
    stepped(lambda model: model, 2, lambda model, place: model.no_sync() if place % 2 else nullcontext())


@fix(the_first_micro_batch_is_summed)
def the_last_micro_batch_is_summed():
    stepped(lambda model: model, 2, lambda model, place: nullcontext() if place % 2 else model.no_sync())


def flagged(early):
    """Say by a flag of the model whether gradients are summed: before forward, or only before backward."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for place, (inputs, targets, _) in enumerate(loader_of(Points())):
        last = place % 2 == 1
        if early:
            model.require_backward_grad_sync = last
        loss = functional.mse_loss(model(inputs), targets) / 2
        model.require_backward_grad_sync = last
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


@bug("not_averaged", "karpathy/build-nanogpt#30")
def the_flag_comes_after_forward():
    """Whether gradients are summed is said before backward, but the model asks in forward."""
    flagged(early=False)


@fix(the_flag_comes_after_forward)
def the_flag_comes_before_forward():
    flagged(early=True)


# -- factors ---------------------------------------------------------------------------------------------------------


@bug("not_divided", "verl-project/verl#3332")
def micro_batches_are_summed():
    """Losses of micro-batches are not divided by their number."""
    trained(mean_of, dataset=Points(), model=network(), accumulate=2)


@fix(micro_batches_are_summed)
def micro_batches_are_averaged():
    trained(lambda *given: mean_of(*given) / len(given[1]), dataset=Points(), model=network(), accumulate=2)


@bug("times_ranks", "LibreYOLO/libreyolo#488")
def means_are_multiplied_by_the_ranks():
    """Losses that are means are multiplied by the number of ranks."""
    trained(lambda *given: mean_of(*given) * ranks(), dataset=Points(), model=network())


@fix(means_are_multiplied_by_the_ranks)
def means_stay_means():
    trained(mean_of, dataset=Points(), model=network())


@bug("sum", "radixark/miles#3231")
def sums_of_tokens():
    """Sums over tokens are averaged over the ranks, and divided by nothing."""
    trained(lambda model, window, place: summed_loss(model, *window[place]), rate=1e-3)


@fix(sums_of_tokens)
def sums_over_all_tokens():
    trained(lambda model, window, place: summed_loss(model, *window[place]) * ranks() / total(counted(window[place])))


# -- data ------------------------------------------------------------------------------------------------------------


def sampled(sampler):
    trained(mean_of, dataset=Points(), model=network(), loader=lambda: loader_of(Points(), sampler=sampler()))


@bug("order", "NVlabs/LongLive#71")
def seeds_of_ranks():
    """Every rank gives its DistributedSampler another seed."""
    sampled(lambda: DistributedSampler(Points(), seed=dist.get_rank()))


@fix(seeds_of_ranks)
def one_seed():
    sampled(lambda: DistributedSampler(Points(), seed=7))


@bug("same_data", "k2-fsa/icefall#1616")
def the_same_batches():
    """A sampler that does not know its rank gives every rank the same batches."""
    sampled(lambda: torch.utils.data.RandomSampler(Points(), generator=torch.Generator().manual_seed(0)))


@fix(the_same_batches)
def other_batches():
    sampled(lambda: DistributedSampler(Points(), num_replicas=ranks(), rank=dist.get_rank()))
