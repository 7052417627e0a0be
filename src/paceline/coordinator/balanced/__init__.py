"""Balanced training (LB-BSP): the sizes of the next batches from what the workers report at every barrier."""

from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.coordinator.balanced.plan import Plan
from paceline.coordinator.balanced.policy import Policy

__all__ = ["LoadBalancer", "Plan", "Policy"]
