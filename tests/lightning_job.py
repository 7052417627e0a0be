"""A job of Lightning for ``test_lightning.py``, run by torchrun: lightning_job.py FOLDER."""

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from huggingface_job import EPOCHS, GLOBAL_BATCH, NORM, RATE, SEED, MeanNet, Samples, restless, weights_of
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

from paceline.coordinator.lightning import balance_callback
from paceline.coordinator.torch import BalancedLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):
    """The model, as Lightning takes it: nothing in it knows of balancing."""

    def __init__(self, accumulate=1):
        super().__init__()
        self.accumulate, self.net, self.sizes = accumulate, MeanNet(), []

    def training_step(self, batch, _):
        self.sizes.append(len(batch["x"]))
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)

    def train_dataloader(self):
        collate = torch.utils.data.default_collate
        return BalancedLoader(Samples(), GLOBAL_BATCH, seed=SEED, accumulate=self.accumulate, collate_fn=collate)


def trained(folder, *, accumulate=1, told=None, resume=None):
    """Train with Lightning and return what came out."""
    module = Module(accumulate if told is None else told)
    callback = balance_callback(metrics=str(folder / "run.jsonl"), **restless())
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        callbacks=[callback, ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)],
        gradient_clip_val=NORM,
        accumulate_grad_batches=accumulate,
        max_epochs=EPOCHS,
        **quiet,
    )
    trainer.fit(module, ckpt_path=resume)
    return {"weights": weights_of(module), "sizes": module.sizes, "steps": trainer.global_step}


def refused(folder):
    """Return what is said where the loader does not know of gradient accumulation."""
    try:
        trained(folder, accumulate=3, told=1)
    except ValueError as error:
        return str(error)


def main(folder):
    """Run every case on this rank; the first rank writes what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    outcomes = {
        "plain": trained(folder / "plain"),
        "accumulated": trained(folder / "accumulated", accumulate=3),
        "resumed": trained(folder / "resumed", resume=str(folder / "plain" / "epoch=0-step=5.ckpt")),
        "refused": refused(folder / "refused"),
    }
    if torch.distributed.get_rank() == 0:
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
