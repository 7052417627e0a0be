"""Federated rounds that end together: equal local steps and learning rate, batches by speed. Needs no engine."""

from paceline.coordinator.federated.balancer import FederatedBalancer
from paceline.coordinator.federated.plan import RoundPlan
from paceline.coordinator.federated.reasons import Reason, Source
from paceline.coordinator.federated.report import RoundReport
from paceline.coordinator.federated.rounds import iteration_of
from paceline.coordinator.federated.shares import Shares

__all__ = ["FederatedBalancer", "Reason", "RoundPlan", "RoundReport", "Shares", "Source", "iteration_of"]
