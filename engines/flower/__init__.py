"""Federated rounds that end together, on Flower: a strategy around the user's, and a stopwatch for its clients."""

from paceline.engines.flower.client import ClientStopwatch, stopwatch
from paceline.engines.flower.strategy import BalancedStrategy

__all__ = ["BalancedStrategy", "ClientStopwatch", "stopwatch"]
