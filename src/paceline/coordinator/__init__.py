"""The three decision cores, without threads, files or clock: balanced, asynchronous and federated training."""

from paceline.coordinator.balanced import LoadBalancer, Plan, Policy

__all__ = ["LoadBalancer", "Plan", "Policy"]
