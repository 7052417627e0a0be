"""Live coordination: the decision core that chooses the next batch sizes from what the workers report."""

from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.runs.iteration import Iteration
from paceline.coordinator.balanced.plan import Plan
from paceline.coordinator.balanced.policy import Policy

__all__ = ["Iteration", "LoadBalancer", "Plan", "Policy"]
