"""A script as Lightning's first example: an autoencoder in a LightningModule, a Trainer with two processes."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(lightning.LightningModule):
    """Two small networks."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def training_step(self, batch, batch_idx):
        """Return the loss."""
        x, _ = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(0)
    loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.zeros(512)), batch_size=16, shuffle=True)
    devices = int(os.environ.get("WORLD_SIZE", "2"))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, accumulate_grad_batches=2,
    )  # fmt: skip
    trainer.fit(AutoEncoder(), loader)


if __name__ == "__main__":
    main()
