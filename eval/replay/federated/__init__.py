"""Federated clients to try schemes on: devices that take time, data that differs, models that really train."""

from paceline.eval.replay.federated.client_data import Shards, digits, mixture, spread
from paceline.eval.replay.federated.fedbuff import iter_buffered
from paceline.eval.replay.federated.federated_replay import RoundMoment, RoundSetting, iter_rounds
from paceline.eval.replay.federated.federated_schemes import (
    AdaptiveRate,
    AdaptiveSteps,
    BalancedClients,
    ClientAssignment,
    ClientScheme,
    DeadlineDrop,
    Standard,
)
from paceline.eval.replay.federated.learning import SmallNetwork
from paceline.eval.replay.federated.population import Population, fedscale, phones, slowdown_of

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
