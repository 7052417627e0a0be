"""The three decision cores, without threads, files or clock: balanced, asynchronous and federated training."""

from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy

__all__ = ["LoadBalancer", "Plan", "Policy"]
