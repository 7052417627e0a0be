"""Federated rounds that end together, on Flower: a strategy around the user's, and a stopwatch for its clients."""

from paceline.coordinator.federated.flower.client import Stopwatch, stopwatch
from paceline.coordinator.federated.flower.strategy import BalancedStrategy

__all__ = ["BalancedStrategy", "Stopwatch", "stopwatch"]
