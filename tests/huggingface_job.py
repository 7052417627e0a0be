"""A job of the Trainer for ``test_huggingface.py``."""

import os
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import trainers
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Dataset, IterableDataset, SequentialSampler
from trainers import (
    GLOBAL_BATCH,
    LENGTHS,
    NORM,
    RATE,
    SEED,
    MeanNet,
    OwnTokensNet,
    Samples,
    TokenNet,
)
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from paceline.integrations.huggingface import BalancedTrainerMixin
from paceline.torch import Costs


class Balanced(BalancedTrainerMixin, Trainer):
    """As a user writes it."""


class Stop(TrainerCallback):
    """Saves and stops after so many steps."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **rest):
        control.should_training_stop = control.should_save = state.global_step == self.after


def trainer_of(
    folder,
    network,
    *,
    kind=Balanced,
    dataset=None,
    balancing=None,
    costs=None,
    collate=None,
    model_init=None,
    sharded=False,
    **options,
):
    """Return a Trainer of this kind, for FSDP2 or not."""
    fixed = {"lr_scheduler_type": "constant", "optim": "sgd", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    settings = {
        "per_device_train_batch_size": GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", 1)),
        "num_train_epochs": trainers.EPOCHS,
        "learning_rate": RATE,
        "max_grad_norm": NORM,
        "logging_steps": 1,
        "seed": SEED,
        "save_strategy": "no",
        **fixed,
        **options,
    }
    arguments = TrainingArguments(str(folder), **settings)
    dataset = Samples() if dataset is None else dataset
    rest = {"eval_dataset": Samples()} if "eval_steps" in options else {}
    rest |= {
        "model_init": model_init,
        "metrics": str(folder / "run.jsonl"),
        "balancing": trainers.restless(**balancing or {}),
        "costs": costs,
    }
    trainer = kind(network, arguments, collate, dataset, **rest)
    if sharded:
        trainers.shard(FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap"))
        trainer.is_fsdp_enabled = True
    return trainer


def trained(folder, net, *, stop=None, resume=None, before=(), alone=None, compare=True, **options):
    """Train with the Trainer and return what came out."""
    network = net()
    trainer = trainer_of(folder, network, **options)
    if stop:
        trainer.add_callback(Stop(stop))
    trainer.train(resume_from_checkpoint=resume)
    found = {"steps": trainer.state.global_step}
    found["logged"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    network.seen = [*before, *network.seen]
    if compare:
        found |= trainers.compared(network, network.seen, net, **alone or {})
    assert isinstance(trainer.model_wrapped, FSDPModule) == options.get("sharded", False)
    trainer.balance.close()
    return found, network.seen


def resumed(folder, net, **options):
    """Train with a stop in the middle of an epoch, whose last step has fewer micro-batches than the others."""
    options |= {"gradient_accumulation_steps": 3}
    stopped, seen = trained(folder, net, stop=2, compare=False, **options)
    checkpoint = str(folder / "checkpoint-2")
    found, seen = trained(folder, net, resume=checkpoint, before=seen, alone={"accumulate": 3}, **options)
    return {**found, "stopped": stopped["steps"]}


def missing(folder, net):
    """Return what is said of a checkpoint that was not saved by a balanced Trainer."""
    checkpoint = str(folder / "checkpoint-2")
    torch.distributed.barrier()
    (Path(checkpoint) / "paceline.pt").unlink(missing_ok=True)
    torch.distributed.barrier()
    return trainers.refusal(lambda: trainer_of(folder, net()).train(resume_from_checkpoint=checkpoint))


def twice(folder):
    """Look at a batch, train, and train once more with the same Trainer; return how far that is from one run."""
    network = MeanNet()
    trainer = trainer_of(folder, network, num_train_epochs=1)
    peeked = len(next(iter(trainer.get_train_dataloader()))["x"])
    trainer.train()
    trainer.train()
    found = trainers.compared(network, network.seen, MeanNet)
    trainer.balance.close()
    return {**found, "peeked": peeked}


def anew(folder):
    """Train two models one after the other, as a search does; return how far the second is from one process."""
    networks = []

    def begin():
        networks.append(MeanNet())
        return networks[-1]

    trainer = trainer_of(folder, None, model_init=begin, num_train_epochs=1)
    trainer.train()
    trainer.args.per_device_train_batch_size = 4
    trainer.train()
    found = trainers.compared(networks[-1], networks[-1].seen, MeanNet)
    trainer.balance.close()
    return {**found, "global_batch": sum(len(first) for first in trainers.seen_by_all(networks[-1].seen[0]))}


def ordered(folder):
    """Return which samples the first batches hold when they are to come in order."""
    network = MeanNet()
    trainer = trainer_of(folder, network, train_sampling_strategy="sequential", max_steps=2, dataloader_num_workers=1)
    trainer.train()
    first_R = trainers.seen_by_all(network.seen[0])
    trainer.balance.close()
    return [number for part in first_R for number in part]


class Scaled(Balanced):
    """Has a loss that is a mean over the tokens of the rank's own batch, and scales it."""

    def compute_loss(self, model, inputs, *arguments, **options):
        count = (inputs["labels"] != -100).sum()
        return self.balance.scale(super().compute_loss(model, inputs, *arguments, **options), count)


class ScaledTokens(Balanced):
    """Has a model that takes the number of all tokens, but leaves it out, and scales the mean over its own tokens."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        count = (inputs["labels"] != -100).sum()
        outputs = model(**inputs, num_items_in_batch=count)
        loss = self.balance.scale(outputs["loss"], count) if model.training else outputs["loss"]
        return (loss, outputs) if return_outputs else loss


def one_device(folder):
    """Train without other ranks."""
    (folder / "accumulated").mkdir(parents=True)
    (folder / "tokens").mkdir()
    thirds = {"by_tokens": True, "accumulate": 3}
    options = {"gradient_accumulation_steps": 3}
    return {
        "tokens": trained(folder / "tokens", TokenNet, alone=thirds, **options)[0],
        "scaled": trained(folder / "accumulated", OwnTokensNet, alone=thirds, kind=Scaled, **options)[0],
    }


def length_of(sample):
    return LENGTHS[int(sample["number"])]


# -- models of the library -------------------------------------------------------------------------------------------


class Texts(Dataset):
    """Twelve tokens, and a class or a number."""

    def __init__(self, classes):
        self.classes = classes

    def __len__(self):
        return 72

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(int(index))
        labels = (
            torch.randint(self.classes, (), generator=chance)
            if self.classes > 1
            else torch.randn((), generator=chance, dtype=torch.float64)
        )
        return {
            "input_ids": torch.cat([torch.tensor([index]), torch.randint(100, (11,), generator=chance)]),
            "labels": labels,
        }


def bert(classes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=100, num_labels=classes, max_position_embeddings=16, **sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return BertForSequenceClassification(config).double()


def classified(folder, classes):
    """Train BERT; return how far it is from one process, and what was warned about."""
    network, seen, dataset = bert(classes), [], Texts(classes)

    def remember(module, args, options):
        if module.training:
            seen.append(options["input_ids"][:, 0].tolist())  # the first token is the sample's number

    network.register_forward_pre_hook(remember, with_kwargs=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_of(folder, network, dataset=dataset, max_grad_norm=0.0, neftune_noise_alpha=1e-30)
        trainer.train()
    seen_R = trainers.seen_by_all(seen)
    expected = bert(classes)
    optimizer = torch.optim.SGD(expected.parameters(), RATE)
    # Where the model leaves the number of tokens unused, the Trainer multiplies a mean by the number of ranks.
    times = 2
    for batch in trainers.unions_of(seen_R, dataset):
        (expected(**batch).loss * times).backward()
        optimizer.step()
        optimizer.zero_grad()
    told = sorted({str(one.message) for one in caught if one.category.__name__ == "BalanceWarning"})
    found = {"distance": trainers.distance(network, expected), "warned": told}
    trainer.balance.close()
    return found


# -- what is refused -------------------------------------------------------------------------------------------------


def packed(samples):
    """Make a batch of one row of samples without padding."""
    joined = {name: torch.cat([sample[name] for sample in samples])[None] for name in ("x", "labels")}
    return {**joined, "number": torch.stack([sample["number"] for sample in samples])}


class Stream(IterableDataset):
    """Samples without numbers."""

    def __iter__(self):
        return iter(Samples())


class Sampling(Trainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


class Loading(Trainer):
    def get_train_dataloader(self):
        return super().get_train_dataloader()


class BalancedSampling(BalancedTrainerMixin, Sampling):
    """A sampler of one's own below the mixin."""


class BalancedLoading(BalancedTrainerMixin, Loading):
    """A loader of one's own below the mixin."""


class PlainLoading(Balanced):
    """A loader of one's own above the mixin."""

    def get_train_dataloader(self):
        return Trainer.get_train_dataloader(self)


def refused(folder, net=MeanNet, **options):
    """Return what training is refused with."""
    return trainers.refusal(lambda: trainer_of(folder, net(), **options).train())


def refusals(folder):
    """Return what is refused, by what it is about; the Trainer is told of its loader's options one after the other."""
    trainer = trainer_of(folder, MeanNet())

    def told(holder, **options):
        before = {name: getattr(holder, name) for name in options}
        for name, value in options.items():
            setattr(holder, name, value)
        try:
            return trainers.refusal(trainer.get_train_dataloader)
        finally:
            for name, value in before.items():
                setattr(holder, name, value)

    found = {
        f"{name}={shown[0] if shown else value}": told(holder, **{name: value})
        for holder, name, value, *shown in (
            (trainer.args, "train_sampling_strategy", "group_by_length"),
            (trainer.args, "train_sampling_strategy", "batch_rebalance"),
            (trainer.args, "auto_find_batch_size", True),
            (trainer.args, "dataloader_in_order", False),
            (trainer.args, "average_tokens_across_devices", False),
            (trainer.args.accelerator_config, "split_batches", True),
            (trainer.args.accelerator_config, "dispatch_batches", True),
            (trainer.args.accelerator_config, "use_seedable_sampler", False),
            (trainer, "train_dataset", Stream(), "stream"),
            (trainer, "is_fsdp_enabled", True),
            (trainer, "is_deepspeed_enabled", True),
            (trainer.accelerator.state, "parallelism_config", object(), "any"),
        )
    }
    return found | {
        "a sampler": refused(folder, kind=BalancedSampling),
        "a loader": refused(folder, kind=BalancedLoading),
        "a loader above": refused(folder, kind=PlainLoading),
        "a packed batch": refused(folder, collate=packed),
        "a budget": refused(folder, costs=Costs(lengths=LENGTHS, global_tokens=50)),
        "a checkpoint": missing(folder.parent / "resumed", MeanNet),
    }


class RoutedNet(TokenNet):
    """A loss with a part that is not divided by tokens."""

    def forward(self, x, labels, number=None, num_items_in_batch=None):
        loss = super().forward(x, labels, number, num_items_in_batch)["loss"]
        return {"loss": loss + self.layers(x).square().mean()}


def warned(folder, net, **options):
    """Return what one step warns about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(folder, net, max_steps=1, compare=False, **options)
    return [str(one.message) for one in caught if one.category.__name__ == "BalanceWarning"]


def warned_of_repeating(folder):
    trainer = trainer_of(folder, MeanNet())
    trainer.args.full_determinism = True  # set late: it would slow all other cases down
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.get_train_dataloader()
    return [str(one.message) for one in caught]


def main(folder):
    """Run every case on this rank."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 3}
    by_tokens = {"by_tokens": True}
    kept = {
        "dataloader_drop_last": True,
        "dataloader_num_workers": 1,
        "dataloader_prefetch_factor": 3,
        "dataloader_persistent_workers": True,
        "dataloader_multiprocessing_context": "fork",
        "data_seed": 3,
        "accelerator_config": {
            "even_batches": False,
            "non_blocking": True,
            "gradient_accumulation_kwargs": {"sync_each_batch": True},
        },
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 1,
    }

    def case(name, net, alone=None, **options):
        return trained(folder / name, net, alone=alone, **options)[0]

    return {
        "mean": case("mean", MeanNet, **evaluated),
        "tokens": case("tokens", TokenNet, by_tokens),
        "packed rows, tokens": case("packed-tokens", TokenNet, by_tokens, collate=packed),
        "mean, accumulated": case("accumulated", MeanNet, {"accumulate": 3}, gradient_accumulation_steps=3),
        "tokens, accumulated": case(
            "accumulated-tokens", TokenNet, {**by_tokens, "accumulate": 3}, gradient_accumulation_steps=3
        ),
        "costs": case("costs", MeanNet, costs=Costs(lengths=LENGTHS, cap=60.0)),
        "costs, tokens": case("costs-tokens", TokenNet, by_tokens, costs=Costs(cost=length_of, padded=True)),
        "own tokens": case("own-tokens", OwnTokensNet, by_tokens, kind=Scaled, costs=Costs(lengths=LENGTHS)),
        "compiled": case("compiled", MeanNet, torch_compile_backend="eager", max_steps=4),
        "own tokens, accumulated": case(
            "scaled", OwnTokensNet, {**by_tokens, "accumulate": 3}, kind=Scaled, gradient_accumulation_steps=3
        ),
        "scaled tokens, accumulated": case(
            "scaled-tokens",
            TokenNet,
            {**by_tokens, "accumulate": 3},
            kind=ScaledTokens,
            gradient_accumulation_steps=3,
            **evaluated,
        ),
        "resumed": resumed(folder / "resumed", MeanNet),
        "options": case("options", MeanNet, {"accumulate": 2, "batches": 7}, gradient_accumulation_steps=2, **kept),
        "twice": twice(folder / "twice"),
        "anew": anew(folder / "anew"),
        "ordered": ordered(folder / "ordered"),
        "classes": classified(folder / "classes", 3),
        "numbers": classified(folder / "numbers", 1),
        "refusals": refusals(folder / "refused"),
        "warned": {
            "routed": warned(folder / "routed", RoutedNet),
            "repeated": warned_of_repeating(folder / "repeated"),
        },
        "sharded": case("sharded", MeanNet, sharded=True),
        "sharded, tokens": case(
            "sharded-tokens", TokenNet, {**by_tokens, "accumulate": 3}, gradient_accumulation_steps=3, sharded=True
        ),
        "sharded, resumed": resumed(folder / "sharded-resumed", MeanNet, sharded=True),
    }
