"""A job of Lightning and of Fabric for ``test_lightning.py``."""

import logging
import warnings

import fabric_cases
import lightning.pytorch as pl
import torch
import trainers
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, default_collate
from trainers import EPOCHS, GLOBAL_BATCH, NORM, RATE, SEED, MeanNet, Samples, SynchronizedNet, restless

from paceline.integrations.lightning import balance_callback
from paceline.torch import BalancedLoader, Costs

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):
    """The model, as Lightning takes it: nothing in it knows of balancing."""

    def __init__(self, net=MeanNet, **options):
        super().__init__()
        self.net, self.options, self.validated = net(), options, 0

    def training_step(self, batch, _):
        return self.net(**batch)["loss"]

    def validation_step(self, batch, _):
        self.validated += 1
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)

    def train_dataloader(self):
        return BalancedLoader(Samples(), GLOBAL_BATCH, seed=SEED, collate_fn=default_collate, **self.options)

    def val_dataloader(self):
        return DataLoader(Samples(), batch_size=45)


class WithUnused(Module):
    """Parameters that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.spare = torch.nn.Linear(2, 2).double()


def scale_of(module):
    """Return ``scale`` of the callback that balances."""
    return next(one.balance.scale for one in module.trainer.callbacks if getattr(one, "balance", None))


class Tokens(Module):
    """A loss divided by the tokens of all ranks."""

    def training_step(self, batch, _):
        tokens = (batch["labels"] != -100).sum()
        torch.distributed.all_reduce(tokens)
        return scale_of(self)(self.net.losses(**batch).sum() * self.trainer.world_size / tokens)


class OwnTokens(Module):
    """A mean over the tokens of the rank's own batch."""

    def __init__(self, **options):
        super().__init__(trainers.OwnTokensNet, **options)

    def training_step(self, batch, _):
        return scale_of(self)(self.net(**batch)["loss"], (batch["labels"] != -100).sum())


class Manual(Module):
    """Accumulates gradients by hand, without summing them, over micro-batches of other sizes each."""

    automatic_optimization = False

    def training_step(self, batch, number):
        optimizer, last = self.optimizers(), number % 3 == 2 or number == trainers.BATCHES - 1
        with self.trainer.strategy.block_backward_sync() if not last else warnings.catch_warnings():
            self.manual_backward(self.net(**batch)["loss"] / 3)
        if last:
            self.clip_gradients(optimizer, NORM, "norm")
            optimizer.step()
            optimizer.zero_grad()


class Adversaries(Module):
    """A generator and its critic, each with an optimizer of its own."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic = torch.nn.Linear(6, 6).double(), torch.nn.Linear(6, 1).double()

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), 0.05) for net in (self.generator, self.critic)]

    def training_step(self, batch, _):
        self.net.remember(batch["number"])
        generator, critic = self.optimizers()
        self.toggle_optimizer(critic)
        critic.zero_grad()
        self.manual_backward(critic_loss(self.generator, self.critic, batch["x"]))
        critic.step()
        self.untoggle_optimizer(critic)
        self.toggle_optimizer(generator)
        generator.zero_grad()
        self.manual_backward(generator_loss(self.generator, self.critic, batch["x"]))
        generator.step()
        self.untoggle_optimizer(generator)


def critic_loss(generator, critic, x):
    real, rejected = critic(x), critic(generator(x).detach())
    return bce(real, torch.ones_like(real)) + bce(rejected, torch.zeros_like(rejected))


def generator_loss(generator, critic, x):
    fooled = critic(generator(x))
    return bce(fooled, torch.ones_like(fooled))


def trainer_of(folder, *callbacks, clip=NORM, **settings):
    """Return a Trainer and the callback that balances."""
    balance = balance_callback(metrics=str(folder / "run.jsonl"), **restless())
    fixed = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 1}
    settings = {
        "strategy": DDPStrategy(process_group_backend="gloo"),
        "devices": 2,
        "max_epochs": EPOCHS,
        "gradient_clip_val": clip,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
        **settings,
    }
    trainer = pl.Trainer(accelerator="cpu", callbacks=[balance, *callbacks], **fixed, **settings)
    return trainer, balance


def trained(folder, module=None, *callbacks, resume=None, before=(), alone=None, **settings):
    """Train with Lightning and return what came out."""
    module = module or Module()
    if isinstance(module, Sharded):  # whose gradients Lightning does not clip
        settings |= {"strategy": ModelParallelStrategy(2, 1, True, "gloo"), "clip": None}
        alone = {"norm": None, **(alone or {})}
    trainer, balance = trainer_of(folder, *callbacks, **settings)
    trainer.fit(module, ckpt_path=resume)
    seen = module.net.seen = [*before, *module.net.seen]
    net = type(module.net)
    found = trainers.compared(module.net, seen, net, **alone or {})
    return {
        **found,
        "steps": trainer.global_step,
        "closed": balance.balance.closed,
        "validated": module.validated,
    }, seen


def resumed(folder, module=Module, **settings):
    """Train, and train on from a checkpoint in the middle of an epoch."""
    every = ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)
    plain, seen = trained(folder, module(), every, **settings)
    checkpoint = str(folder / "epoch=0-step=5.ckpt")
    return {**plain, "resumed": trained(folder, module(), resume=checkpoint, before=seen[:5], **settings)[0]}


def adversaries(folder):
    """Return how far a generator and its critic are from those of one process."""
    module = Adversaries()
    trainer_of(folder, clip=None, strategy="ddp_find_unused_parameters_true")[0].fit(module)
    seen_R = trainers.seen_by_all(module.net.seen)
    alone = Adversaries()
    generator, critic = alone.configure_optimizers()
    for batch in trainers.unions_of(seen_R):
        for optimizer, loss_of in ((critic, critic_loss), (generator, generator_loss)):
            alone.zero_grad()
            loss_of(alone.generator, alone.critic, batch["x"]).backward()
            optimizer.step()
    apart = [trainers.distance(getattr(module, name), getattr(alone, name)) for name in ("generator", "critic")]
    return {"distance": max(apart), "uneven": trainers.uneven(seen_R)}


class Layers(TorchSyncBatchNorm):
    """Puts layers that see all ranks' samples in place of others, as ``sync_batchnorm=True`` does on a GPU."""

    def apply(self, model):
        model.net.layers.insert(1, trainers.Synchronized())
        return model

    def revert(self, model):
        return model


def synchronized(folder):
    """Train with a Trainer that puts synchronized layers into the module."""
    module = Module()
    trainer_of(folder, sync_batchnorm=True, plugins=[Layers()])[0].fit(module)
    return trainers.compared(module.net, module.net.seen, SynchronizedNet)


def twice(folder):
    """Fit for one epoch, and then for another."""
    module = Module()
    trainer_of(folder, max_epochs=1)[0].fit(module)
    trainer = trainer_of(folder, max_epochs=1)[0]
    trainer.fit(module)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module)
    orders = [trainers.seen_by_all(module.net.seen[begin : begin + 8]) for begin in (0, 8, 16)]
    return {**trainers.compared(module.net, module.net.seen, MeanNet), "orders": orders}


class Sharded(Module):
    """A model whose parameters are shared among the ranks."""

    def configure_model(self):
        for layer in self.sharded():
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def sharded(self):
        return self.net.layers[0], self.net


class ShardedLayers(Sharded):
    """A model of which only layers are sharded."""

    def sharded(self):
        return self.net.layers[0], self.net.layers[2]


class Budget(Module):
    def train_dataloader(self):
        return BalancedLoader(Samples(), **self.options)


class PlainLoader(Module):
    def train_dataloader(self):
        return DataLoader(Samples(), batch_size=6)


def refusals(folder):
    def refused(module=None, **settings):
        module = module or Module()
        settings = {"clip": NORM if module.automatic_optimization else None, **settings}
        return trainers.refusal(lambda: trainer_of(folder, **settings)[0].fit(module))

    return {
        "a plain loader": refused(PlainLoader()),
        "sharded layers": refused(ShardedLayers(), clip=None, strategy=ModelParallelStrategy(2, 1, True, "gloo")),
        "overfit_batches": refused(overfit_batches=2),
        "reload_dataloaders_every_n_epochs": refused(reload_dataloaders_every_n_epochs=1),
        "accumulate": refused(Module(accumulate=2), accumulate_grad_batches=3),
        "micro-batches": refused(Module(micro_batch=2)),
        "a budget of tokens": refused(Budget(costs=Costs(lengths=trainers.LENGTHS, global_tokens=50.0))),
    }


def one_device(folder):
    """Train without other ranks, with Lightning and with Fabric."""
    thirds = {"accumulate": 3, "of_whole_steps": True}
    fitted = trained(folder, alone=thirds, accumulate_grad_batches=3, devices=1, strategy="auto")[0]
    return {"lightning": fitted, "fabric": fabric_cases.one_device()}


def main(folder):
    """Run every case on this rank."""
    warnings.simplefilter("ignore")
    thirds = {"accumulate": 3, "of_whole_steps": True}
    return {
        "plain": resumed(folder / "plain"),
        "accumulated": trained(folder / "accumulated", alone=thirds, accumulate_grad_batches=3)[0],
        "scheduled": trained(folder, None, GradientAccumulationScheduler({0: 3}), alone=thirds)[0],
        "options": trained(
            folder,
            WithUnused(),
            precision="64-true",
            strategy="ddp_find_unused_parameters_true",
            use_distributed_sampler=True,
            val_check_interval=3,
        )[0],
        "limited": trained(folder, alone={"batches": 5}, limit_train_batches=5)[0],
        "tokens": trained(folder, Tokens(), alone={"by_tokens": True})[0],
        "costs": trained(folder, Module(costs=Costs(lengths=trainers.LENGTHS, cap=60.0)))[0],
        "costs and tokens": trained(
            folder,
            OwnTokens(costs=Costs(cost=trainers.LENGTHS)),
            alone={**thirds, "by_tokens": True},
            accumulate_grad_batches=3,
        )[0],
        "manual": trained(folder, Manual(), alone=thirds, clip=None)[0],
        "sharded": resumed(folder / "sharded", Sharded),
        "sharded and accumulated": trained(folder, Sharded(), alone=thirds, accumulate_grad_batches=3)[0],
        "adversaries": adversaries(folder),
        "synchronized": synchronized(folder),
        "twice": twice(folder),
        "refusals": refusals(folder),
        "fabric": fabric_cases.cases(folder),
    }
