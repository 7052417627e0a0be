"""Live coordination: the decision core that chooses the next batch sizes from what the workers report."""

from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy

__all__ = ["Iteration", "LoadBalancer", "Plan", "Policy"]
