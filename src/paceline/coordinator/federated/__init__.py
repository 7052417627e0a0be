"""Federated rounds that end together: equal local steps and learning rate, batches by speed. Needs no engine."""

from paceline.coordinator.federated.federated_balancer import FederatedBalancer
from paceline.coordinator.federated.round_plan import RoundPlan
from paceline.coordinator.federated.round_reasons import ForecastSource, Reason
from paceline.coordinator.federated.round_report import RoundReport
from paceline.coordinator.federated.shares import Shares

__all__ = ["FederatedBalancer", "ForecastSource", "Reason", "RoundPlan", "RoundReport", "Shares"]
