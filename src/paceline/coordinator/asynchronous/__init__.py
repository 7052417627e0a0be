"""Asynchronous training that limits staleness without waiting (SaPS), and its neighbors.

The server is pure: no threads, files or clock. Schemes are the same server with other rules: see
:mod:`paceline.coordinator.asynchronous.schemes`.
"""

from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler, SampleBatch
from paceline.coordinator.asynchronous.optimizer import SGD, Optimizer, Vector
from paceline.coordinator.asynchronous.schemes import SCHEMES, Scheme, saps, scheme
from paceline.coordinator.asynchronous.server import Ledger, Outcome, Pulled, Server, Verdict
from paceline.coordinator.asynchronous.stragglers import StalenessReport, expected_staleness
from paceline.coordinator.asynchronous.workers import StepToken

__all__ = [
    "SCHEMES",
    "SGD",
    "EpochSampler",
    "Ledger",
    "Optimizer",
    "Outcome",
    "Pulled",
    "SampleBatch",
    "Scheme",
    "Server",
    "StalenessReport",
    "StepToken",
    "Vector",
    "Verdict",
    "expected_staleness",
    "saps",
    "scheme",
]
