"""Live coordination: the decision core that chooses the next batch sizes from what the workers report."""

from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.fallback import SearchFallback
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy
from paceline.coordinator.search import LeaderSearch

__all__ = ["Iteration", "LeaderSearch", "LoadBalancer", "Plan", "Policy", "SearchFallback"]
