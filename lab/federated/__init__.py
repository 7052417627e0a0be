"""Federated clients to try schemes on: devices that take time, data that differs, models that really train."""

from paceline.lab.federated.buffered import iter_buffered
from paceline.lab.federated.learning import Network
from paceline.lab.federated.population import Population, fedscale, phones, slowdown_of
from paceline.lab.federated.replay import Moment, Setting, iter_rounds
from paceline.lab.federated.schemes import (
    AdaptiveRate,
    AdaptiveSteps,
    Assignment,
    Balanced,
    DeadlineDrop,
    Scheme,
    Standard,
)
from paceline.lab.federated.shards import Shards, digits, mixture, spread

__all__ = [
    "AdaptiveRate",
    "AdaptiveSteps",
    "Assignment",
    "Balanced",
    "DeadlineDrop",
    "Moment",
    "Network",
    "Population",
    "Scheme",
    "Setting",
    "Shards",
    "Standard",
    "digits",
    "fedscale",
    "iter_buffered",
    "iter_rounds",
    "mixture",
    "phones",
    "slowdown_of",
    "spread",
]
