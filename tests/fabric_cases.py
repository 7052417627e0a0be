"""Loops of Fabric for ``lightning_job.py``, as a user writes them."""

import torch
import trainers
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch.utils.data import default_collate
from trainers import BATCHES, EPOCHS, GLOBAL_BATCH, NORM, RATE, SEED, MeanNet, Samples, restless

from paceline.torch import BalancedLoader, attach


def begun(strategy=None, devices=2):
    """Return Fabric, with its ranks joined."""
    strategy = strategy or DDPStrategy(process_group_backend="gloo")
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy)
    fabric.launch()
    return fabric


def loader_of():
    return BalancedLoader(Samples(), GLOBAL_BATCH, seed=SEED, collate_fn=default_collate)


def train(fabric, model, optimizer, loader, *, epochs=EPOCHS, stop=None, every=1):
    """Accumulate gradients over this many batches, and clip them."""
    for _ in range(epochs):
        for number, batch in enumerate(loader, 1):
            last = number % every == 0 or number == BATCHES
            with fabric.no_backward_sync(model, enabled=not last):
                fabric.backward(model(**fabric.to_device(batch))["loss"] / every)
            if last:
                fabric.clip_gradients(model, optimizer, max_norm=NORM)
                optimizer.step()
                optimizer.zero_grad()
            if number == stop:
                return


def one_device():
    """Train without other ranks."""
    return trained(every=3, fabric=begun("auto", devices=1))


def trained(*, compiled=False, every=1, fabric=None):
    """Train, and return how far that is from one process."""
    fabric, network = fabric or begun(), MeanNet()
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    wanted = torch.compile(network, backend="eager", dynamic=True) if compiled else network
    model, optimizer = fabric.setup(wanted, optimizer)
    loader = loader_of()
    balance = attach(model, loader, **restless())
    train(fabric, model, optimizer, loader, every=every, epochs=1 if compiled else EPOCHS)
    balance.close()
    return trainers.compared(network, network.seen, MeanNet, accumulate=every, of_whole_steps=True)


def resumed(folder):
    """Save in the middle of an epoch, and train on from there; return how far that is from no stop."""

    def job():
        network = MeanNet()
        model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), RATE))
        loader = loader_of()
        balance = attach(model, loader, **restless())
        return loader, {"model": model, "optimizer": optimizer, "balance": balance}, network

    fabric = begun()
    loader, state, network = job()
    train(fabric, state["model"], state["optimizer"], loader, stop=5)
    fabric.save(folder / "checkpoint.pt", state)
    seen = network.seen
    state["balance"].close()

    loader, state, network = job()
    fabric.load(folder / "checkpoint.pt", state)
    train(fabric, state["model"], state["optimizer"], loader)
    state["balance"].close()
    return trainers.compared(network, seen + network.seen, MeanNet)


def resumed_by_the_loader(folder):
    """Save the loader itself, as LitGPT does, and train on from there; return how far that is from no stop."""

    def job():
        network = MeanNet()
        model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), RATE))
        loader = loader_of()
        return attach(model, loader, **restless()), network, {"model": model, "train_dataloader": loader}, optimizer

    fabric = begun()
    balance, network, state, optimizer = job()
    train(fabric, state["model"], optimizer, state["train_dataloader"], stop=5)
    fabric.save(folder / "loader.pt", state)
    torch.save(state["train_dataloader"].state_dict(), folder / f"{fabric.global_rank}.pt")
    seen = network.seen
    balance.close()

    balance, network, state, optimizer = job()
    fabric.load(folder / "loader.pt", state)
    state["train_dataloader"].load_state_dict(torch.load(folder / f"{fabric.global_rank}.pt"))
    train(fabric, state["model"], optimizer, state["train_dataloader"])
    balance.close()
    return trainers.compared(network, seen + network.seen, MeanNet)


def sharded():
    """Train a model sharded by ``fully_shard``; return how far that is from one process, and what is refused."""
    fabric, network = begun(ModelParallelStrategy(shard, 2, 1, process_group_backend="gloo")), MeanNet()
    model = fabric.setup_module(network)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), RATE))
    loader = loader_of()
    balance = attach(model, loader, **restless())
    for _ in range(EPOCHS):
        for batch in loader:
            fabric.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    seen_R = trainers.seen_by_all(network.seen)
    found = trainers.weights_of(trainers.alone(MeanNet, seen_R, norm=0)[0])
    full = torch.cat([parameter.full_tensor().flatten() for parameter in network.parameters()])
    balance.close()
    return {"distance": float((full - found).abs().max()), "uneven": trainers.uneven(seen_R)}


def shard(module, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def cases(folder):
    """Run every case on this rank."""
    return {
        "plain": trained(),
        "accumulated": trained(every=3),
        "compiled": trained(compiled=True),
        "resumed": resumed(folder),
        "resumed by the loader": resumed_by_the_loader(folder),
        "sharded": sharded(),
        "set up": trainers.refusal(lambda: begun().setup_dataloaders(loader_of(), use_distributed_sampler=False)),
    }
