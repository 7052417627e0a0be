"""Asynchronous training under ``torchrun``: nothing to install, and nothing that a worker sends is unpickled."""

from paceline._require import require

require("torch", needed_by="paceline.coordinator.asynchronous.torch", extra="torch")

from paceline.coordinator.asynchronous.torch.flat import FlatModel  # noqa: E402 (the sentence comes first)
from paceline.coordinator.asynchronous.torch.job import AsyncJob  # noqa: E402
from paceline.coordinator.asynchronous.torch.links import LostServerError  # noqa: E402
from paceline.coordinator.asynchronous.torch.optimiser import TorchOptimiser  # noqa: E402

__all__ = ["AsyncJob", "FlatModel", "LostServerError", "TorchOptimiser"]
