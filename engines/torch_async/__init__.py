"""Asynchronous training under ``torchrun``: nothing to install, and nothing that a worker sends is unpickled."""

from paceline._require import require

require("torch", needed_by="paceline.engines.torch_async", extra="torch")

from paceline.engines.torch_async.async_job import AsyncJob  # noqa: E402
from paceline.engines.torch_async.flat import FlatModel  # noqa: E402 (the sentence comes first)
from paceline.engines.torch_async.links import LostServerError  # noqa: E402
from paceline.engines.torch_async.torch_optimiser import TorchOptimiser  # noqa: E402

__all__ = ["AsyncJob", "FlatModel", "LostServerError", "TorchOptimiser"]
