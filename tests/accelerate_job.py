"""A job of Accelerate for ``test_accelerate.py``."""

import random
import warnings

import torch
import trainers
from accelerate import Accelerator, PartialState, skip_first_batches
from accelerate.utils import (
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
)
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, Subset, default_collate
from trainers import (
    EPOCHS,
    GLOBAL_BATCH,
    LENGTHS,
    NORM,
    RATE,
    SEED,
    MeanNet,
    OwnTokensNet,
    Samples,
    SynchronizedNet,
    restless,
)

from paceline.integrations.accelerate import BalancedLoader, prepare
from paceline.torch import BalancedLoader as GlobalLoader
from paceline.torch import Costs, StreamLoader, attach, gather_rows


def loader_of(dataset=None, **options):
    mean = GLOBAL_BATCH // PartialState().num_processes
    return BalancedLoader(dataset or Samples(), batch_size=mean, seed=SEED, collate_fn=default_collate, **options)


def train(accelerator, model, optimizer, loader, *, scheduler=None, stop=None, scale=None):
    """The loop of Accelerate's own examples; return the learning rate of every step."""
    rates = []
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(scale(loss, batch) if scale else loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), NORM)
                    rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                if scheduler:
                    scheduler.step()
                optimizer.zero_grad()
            if number == stop:
                return rates
    return rates


def accelerator_of(accumulate=1, sharded=False, **settings):
    """An accelerator of a process, for FSDP2 or not."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap") if sharded else None
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulate),
        fsdp_plugin=plugin,
        **settings,
    )
    if accelerator.num_processes > 1:
        trainers.shard(plugin)
    return accelerator


def trained(
    net=MeanNet, *, accumulate=1, folder=None, costs=None, by_tokens=False, count=None, sharded=False, **settings
):
    """Train with ``prepare``; return what came out. ``count`` of a batch is what its loss is a mean over."""
    accelerator = accelerator_of(accumulate, sharded, **settings)
    network = net()
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    metrics = str(folder / "run.jsonl") if folder else ()
    model, optimizer, loader = prepare(
        accelerator, network, optimizer, loader_of(costs=costs), metrics=metrics, **restless()
    )
    scale = count and (lambda loss, batch: loader.balance.scale(loss, count(batch)))
    rates = train(accelerator, model, optimizer, loader, scale=scale)
    assert not sharded or isinstance(model, FSDPModule)
    found = trainers.compared(
        model if sharded else network,
        network.seen,
        net,
        accumulate=accumulate,
        of_whole_steps=True,
        by_tokens=by_tokens,
    )
    loader.balance.close()
    return {**found, "steps": len(rates)}


def in_micro_batches():
    """Ranks with different numbers of micro-batches; gradients are summed after a step's last one alone."""
    accelerator, network = Accelerator(cpu=True), MeanNet()
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    loader = loader_of(micro_batch=2)
    model, optimizer, loader = prepare(accelerator, network, optimizer, loader, **restless())
    seen, part = [], []
    for _ in range(EPOCHS):
        for batch in loader:
            part += batch["number"].tolist()
            with loader.balance.accumulating():
                accelerator.backward(model(**batch)["loss"])
            if loader.step_ends:
                accelerator.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                optimizer.zero_grad()
                seen.append(part)
                part = []
    loader.balance.close()
    return {**trainers.compared(network, seen, MeanNet), "steps": len(seen)}


def two_models():
    """Two models that train on the same batches; return how far the second is from what it would be alone."""
    accelerator, networks = Accelerator(cpu=True), (MeanNet(), MeanNet())
    optimizers = [torch.optim.SGD(network.parameters(), RATE) for network in networks]
    first, second, *optimizers, loader = prepare(accelerator, *networks, *optimizers, loader_of(), **restless())
    for _ in range(EPOCHS):
        for batch in loader:
            for model, optimizer in zip((first, second), optimizers, strict=True):
                accelerator.backward(model(**batch)["loss"])
                accelerator.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                optimizer.zero_grad()
    loader.balance.close()
    return trainers.compared(networks[1], networks[1].seen, MeanNet)


def linear(optimizer, warmup, total):
    """The usual schedule with a warm-up."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(step / max(warmup, 1), max(total - step, 0) / max(total - warmup, 1))
    )


def one_cycle(optimizer, warmup, total):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=total)


def cosine(optimizer, warmup, total):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)


PARTS = {
    "schedule": [linear, linear, one_cycle, cosine],
    "warmup": [0, 3, 7],
    "times_processes": [False, True],
    "total": ["length", "prepared length", "steps"],
    "stepped": ["prepared", "prepared", "prepared", "in every batch", "in every step"],
    "step_scheduler_with_optimizer": [True, True, False],
    "split_batches": [False, False, True],
    "accumulate": [1, 2, 3],
    "drop_last": [False, True],
    "samples": [72, 75, 79, 90],
}
"""What the schedule of a script is made of."""


def script(balanced, idiom):
    """Return the learning rate of every batch of a script that is balanced or not, or what it is refused with."""
    plugin = GradientAccumulationPlugin(num_steps=idiom["accumulate"])
    split = DataLoaderConfiguration(split_batches=idiom["split_batches"])
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_plugin=plugin,
        dataloader_config=split,
        step_scheduler_with_optimizer=idiom["step_scheduler_with_optimizer"],
    )
    network, dataset, processes = MeanNet(), Subset(Samples(), range(idiom["samples"])), accelerator.num_processes
    optimizer, drop_last = torch.optim.SGD(network.parameters(), RATE), idiom["drop_last"]
    batch_size = GLOBAL_BATCH if idiom["split_batches"] else GLOBAL_BATCH // processes
    kind = DataLoader if not balanced else GlobalLoader if idiom["split_batches"] else BalancedLoader
    loader = kind(dataset, batch_size, shuffle=True, drop_last=drop_last)
    ready = prepare if balanced else Accelerator.prepare
    options = restless() if balanced else {}
    times = processes if idiom["times_processes"] else 1
    lengths = {"length": len(loader) * EPOCHS // idiom["accumulate"], "steps": 9 * times}

    def made(optimizer):
        return idiom["schedule"](optimizer, idiom["warmup"] * times, lengths[idiom["total"]])

    if idiom["total"] == "prepared length" or idiom["stepped"] != "prepared":
        model, optimizer, loader = ready(accelerator, network, optimizer, loader, **options)
        lengths["prepared length"] = len(loader) * EPOCHS // idiom["accumulate"]
        scheduler = made(optimizer)
        scheduler = accelerator.prepare(scheduler) if idiom["stepped"] == "prepared" else scheduler
    else:
        model, optimizer, loader, scheduler = ready(accelerator, network, optimizer, loader, made(optimizer), **options)
    rates = []
    try:
        for batch in (batch for _ in range(EPOCHS) for batch in loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                if accelerator.sync_gradients or idiom["stepped"] != "in every step":
                    scheduler.step()
                optimizer.zero_grad()
    except ValueError as error:  # a OneCycleLR that was stepped too often
        rates.append(str(error))
    if balanced:
        loader.balance.close()
    return rates


def rates_of_random_scripts(scripts=15):
    """Return the learning rates of scripts that compute and step their schedules in ways drawn at random."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = []
        for seed in range(scripts):
            draw = random.Random(seed)
            idiom = {name: draw.choice(values) for name, values in PARTS.items()}
            said = {name: getattr(value, "__name__", value) for name, value in idiom.items()}
            found.append({"idiom": said, "plain": script(False, idiom), "balanced": script(True, idiom)})
    return {"scripts": found, "warned": [str(one.message) for one in caught if "scheduler once" in str(one.message)]}


def by_hand(accelerator, network, optimizer, dataset):
    """Without the adapter."""
    loader = GlobalLoader(dataset, GLOBAL_BATCH, seed=SEED)
    scheduler = linear(optimizer, 0, EPOCHS * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(network, optimizer, loader, scheduler)
    attach(model, loader, **restless())
    return model, optimizer, loader, scheduler


def without_the_adapter():
    """Return how exact it is without the adapter, and what is warned about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator, network = Accelerator(cpu=True), MeanNet()
        optimizer = torch.optim.SGD(network.parameters(), RATE)
        model, optimizer, loader, scheduler = by_hand(accelerator, network, optimizer, Samples())
        rates = train(accelerator, model, optimizer, loader, scheduler=scheduler)
    scheduled = [str(one.message) for one in caught if "scheduler" in str(one.message)]
    return {"warned": scheduled, "rates": rates, "seen": len(network.seen)}


def resumed(folder, sharded=False):
    """Train five batches, save, and go on from there in a new job; return how far that is from no stop at all."""

    def begun():
        accelerator, network = accelerator_of(sharded=sharded), MeanNet()
        optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9)
        return accelerator, network, *prepare(accelerator, network, optimizer, loader_of(), **restless())

    accelerator, network, model, optimizer, loader = begun()
    train(accelerator, model, optimizer, loader, stop=5)
    accelerator.save_state(str(folder))
    rest = [number for part in network.seen for number in part]
    for batch in loader.loader:  # to be forgotten
        del batch
        break
    loader.balance.close()

    accelerator, network, model, optimizer, loader = begun()
    accelerator.load_state(str(folder))
    skipped = trainers.refusal(lambda: skip_first_batches(loader, 5))
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
    loader.balance.close()
    seen = [number for part in network.seen for number in part]
    both_R = trainers.seen_by_all(rest + seen)
    return {
        "batches": len(network.seen),
        "skipped": skipped,
        "numbers": sorted(number for both in both_R for number in both),
    }


def gathered():
    """Return whether rows of all ranks can be had in training, and evaluation beside it is as it was."""
    accelerator, network = Accelerator(cpu=True), MeanNet()
    optimizer, evaluation = torch.optim.SGD(network.parameters(), RATE), DataLoader(Samples(), batch_size=7)
    model, optimizer, loader, evaluation = prepare(
        accelerator, network, optimizer, loader_of(), evaluation, **restless()
    )
    rows = []
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        rows += gather_rows(batch["number"]).tolist()
    numbers = [number for batch in evaluation for number in accelerator.gather_for_metrics(batch["number"]).tolist()]
    loader.balance.close()
    return {"rows": sorted(rows), "evaluated": sorted(numbers)}


def refusals():
    accelerator, network = Accelerator(cpu=True, gradient_accumulation_steps=3), MeanNet()
    split = DataLoaderConfiguration(split_batches=True)
    return {
        "no loader": trainers.refusal(lambda: prepare(accelerator, network)),
        "micro-batches": trainers.refusal(lambda: prepare(accelerator, network, loader_of(accumulate=2))),
        "counted twice": trainers.refusal(lambda: prepare(accelerator, network, loader_of(micro_batch=2))),
        "a stream": trainers.refusal(lambda: prepare(accelerator, network, StreamLoader(Samples(), GLOBAL_BATCH))),
        "no model": trainers.refusal(lambda: prepare(accelerator, loader_of())),
        "counts all": trainers.refusal(lambda: prepare(accelerator, network, GlobalLoader(Samples(), GLOBAL_BATCH))),
        "counts one": trainers.refusal(lambda: prepare(Accelerator(cpu=True, dataloader_config=split), loader_of())),
    }


def one_device(folder):
    """Train without other ranks."""
    return trained(OwnTokensNet, accumulate=3, by_tokens=True, count=lambda batch: (batch["labels"] != -100).sum())


def main(folder):
    """Run every case on this rank."""
    assigning = DataLoaderConfiguration(dispatch_batches=True, even_batches=False)
    return {
        "plain": trained(folder=folder),
        "accumulated": trained(accumulate=3, dataloader_config=assigning),
        "scaled": trained(SynchronizedNet, count=lambda batch: len(batch["x"])),
        "costs": trained(costs=Costs(lengths=LENGTHS, cap=60.0)),
        "costs and tokens": trained(
            OwnTokensNet,
            accumulate=3,
            costs=Costs(cost=LENGTHS),
            by_tokens=True,
            count=lambda batch: (batch["labels"] != -100).sum(),
        ),
        "micro-batches": in_micro_batches(),
        "two models": two_models(),
        "rates": rates_of_random_scripts(),
        "without": without_the_adapter(),
        "resumed": resumed(folder / "state"),
        "gathered": gathered(),
        "refusals": refusals(),
        "sharded": trained(sharded=True),
        "sharded and accumulated": trained(accumulate=3, sharded=True),
        "sharded and tokens": trained(
            OwnTokensNet, sharded=True, by_tokens=True, count=lambda batch: (batch["labels"] != -100).sum()
        ),
        "sharded and resumed": resumed(folder / "sharded", sharded=True),
    }
