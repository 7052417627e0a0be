"""The asynchronous parameter server: the job under ``torchrun``, and the server as a service of many threads.

Nothing to install, and nothing that a worker sends is unpickled.
"""

from paceline._require import require

require("torch", needed_by="paceline.parameter_server", extra="torch")

from paceline.parameter_server.async_job import AsyncJob  # noqa: E402 (the sentence comes first)
from paceline.parameter_server.links import LostServerError  # noqa: E402
from paceline.parameter_server.torch_optimizer import FlatModel, TorchOptimizer  # noqa: E402

__all__ = ["AsyncJob", "FlatModel", "LostServerError", "TorchOptimizer"]
