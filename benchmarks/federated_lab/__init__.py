"""Federated clients to try schemes on: devices that take time, data that differs, models that really train."""

from federated_lab.client_data import Shards, digits, mixture, spread
from federated_lab.fedbuff import iter_buffered
from federated_lab.federated_replay import RoundMoment, RoundSetting, iter_rounds
from federated_lab.federated_schemes import (
    AdaptiveRate,
    AdaptiveSteps,
    BalancedClients,
    ClientAssignment,
    ClientScheme,
    DeadlineDrop,
    Standard,
)
from federated_lab.learning import SmallNetwork
from federated_lab.population import Population, fedscale, phones, slowdown_of

__all__ = [
    "AdaptiveRate",
    "AdaptiveSteps",
    "BalancedClients",
    "ClientAssignment",
    "ClientScheme",
    "DeadlineDrop",
    "Population",
    "RoundMoment",
    "RoundSetting",
    "Shards",
    "SmallNetwork",
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
