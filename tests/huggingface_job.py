"""A job of the Trainer and of Accelerate for ``test_huggingface.py``, run by torchrun: huggingface_job.py FOLDER."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from paceline.coordinator import Policy
from paceline.predictors import Forecast

SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, RATE, NORM = 90, 12, 2, 7, 0.1, 0.5


@dataclass
class Restless:
    """A predictor to which the workers seem to have other speeds in every iteration, the same on every rank."""

    driver_names = ()
    workers = ()
    seen = 0

    def reset(self, workers):
        self.workers, self.seen = tuple(workers), 0

    def observe(self, report):
        self.seen += 1

    def state_dict(self):
        return {"seen": np.array(self.seen), "workers": np.array(self.workers, dtype=np.str_)}

    def load_state_dict(self, state):
        self.seen, self.workers = int(state["seen"]), tuple(map(str, state["workers"]))

    def predict(self, drivers=None, *, horizon=1):
        speed = np.random.default_rng(self.seen).uniform(1, 9, len(self.workers))
        return Forecast(speed, np.full(len(self.workers), 0.1))


def restless():
    """Options of ``attach`` with which sizes differ in every iteration."""
    policy = Policy(warmup=0, dead_band=0, cooldown=0, largest_change=np.inf)
    return {"predictor": Restless(), "policy": policy, "timeout": 20, "every": 1}


class Samples(torch.utils.data.Dataset):
    """Samples of 2 to 5 tokens, padded to 5."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        labels = torch.randint(0, 4, (5,), generator=chance)
        labels[: index % 4] = -100
        return {"x": torch.randn(5, 6, generator=chance, dtype=torch.float64), "labels": labels}


class MeanNet(torch.nn.Module):
    """A model whose loss is the mean over the samples of its batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()

    def losses(self, x, labels):
        return cross_entropy(self.layers(x).flatten(0, 1), labels.flatten(), reduction="none")

    def forward(self, x, labels):
        return {"loss": self.losses(x, labels).sum() / len(x)}


class TokenNet(MeanNet):
    """A model whose loss is divided by a number of tokens that the Trainer counts on all ranks."""

    accepts_loss_kwargs = True

    def forward(self, x, labels, num_items_in_batch=None):
        return {"loss": self.losses(x, labels).sum() / num_items_in_batch}


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def alone(net, *, by_tokens=False, accumulate=1, of_whole_steps=False):
    """Train in one process, in a plain loop over the same global batches; return weights and the losses of steps.

    An epoch's last step may have fewer micro-batches: its loss is their mean, unless a whole step's share is wanted.
    """
    from paceline.coordinator.torch import BalancedLoader

    loader = BalancedLoader(
        Samples(),
        GLOBAL_BATCH,
        rank=0,
        world_size=1,
        seed=SEED,
        collate_fn=torch.utils.data.default_collate,
    )
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), RATE), []
    for _ in range(EPOCHS):
        batches = list(loader)
        for first in range(0, len(batches), accumulate):
            step = batches[first : first + accumulate]
            parts = accumulate if of_whole_steps else len(step)
            tokens = sum(int((batch["labels"] != -100).sum()) for batch in step)
            shares = [
                model.losses(**batch).sum() / (tokens if by_tokens else len(batch["x"]) * parts) for batch in step
            ]
            sum(shares).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(sum(shares).detach()))
    return weights_of(model), losses


def trained(folder, net, *, stop=None, resume=None, **options):
    """Train with the Trainer and return what came out."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from paceline.coordinator.huggingface import BalancedTrainerMixin

    class Balanced(BalancedTrainerMixin, Trainer):
        pass

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **rest):
            control.should_training_stop = control.should_save = state.global_step == stop

    fixed = {"lr_scheduler_type": "constant", "optim": "sgd", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=GLOBAL_BATCH // 2,
        num_train_epochs=EPOCHS,
        learning_rate=RATE,
        max_grad_norm=NORM,
        logging_steps=1,
        seed=SEED,
        ddp_timeout=30,
        save_strategy="no",
        **fixed,
        **options,
    )
    metrics = str(folder / "run.jsonl")
    trainer = Balanced(net(), arguments, train_dataset=Samples(), metrics=metrics, balancing=restless())
    if stop:
        trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"weights": weights_of(trainer.model), "losses": losses, "steps": trainer.state.global_step}


def accelerated():
    """Train with Accelerate, in a loop of one's own, and return what came out."""
    from accelerate import Accelerator

    from paceline.coordinator.torch import BalancedLoader, attach

    accelerator, model = Accelerator(cpu=True), MeanNet()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loader = BalancedLoader(Samples(), GLOBAL_BATCH, seed=SEED, collate_fn=torch.utils.data.default_collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    attach(model, loader, **restless())
    sizes = []
    for _ in range(EPOCHS):
        for batch in loader:
            sizes.append(len(batch["x"]))
            accelerator.backward(model(**batch)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
    return {"weights": weights_of(model), "sizes": sizes}


def main(folder):
    """Run every case on this rank; the first rank writes what came out."""
    torch.set_num_threads(1)
    resumed = folder / "stopped" / "checkpoint-5"
    outcomes = {
        "mean": trained(folder / "mean", MeanNet),
        "tokens": trained(folder / "tokens", TokenNet),
        "mean, accumulated": trained(folder / "accumulated", MeanNet, gradient_accumulation_steps=3),
        "tokens, accumulated": trained(folder / "accumulated-tokens", TokenNet, gradient_accumulation_steps=3),
        "stopped": trained(folder / "stopped", MeanNet, stop=5),
        "resumed": trained(folder / "resumed", MeanNet, resume=str(resumed)),
        "accelerated": accelerated(),
    }
    if torch.distributed.get_rank() == 0:
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
