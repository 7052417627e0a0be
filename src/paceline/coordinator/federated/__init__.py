"""Federated rounds that end together: equal local steps and learning rate, batches by speed. Needs no engine."""

from paceline.coordinator.federated.federated_balancer import FederatedBalancer
from paceline.coordinator.federated.rounds import ForecastSource, Reason, RoundPlan, RoundReport

__all__ = ["FederatedBalancer", "ForecastSource", "Reason", "RoundPlan", "RoundReport"]
