"""Federated rounds that end together, on Flower: a strategy around the user's, and a stopwatch for its clients."""

from paceline.integrations.flower.client import ClientStopwatch, stopwatch
from paceline.integrations.flower.strategy import BalancedStrategy

__all__ = ["BalancedStrategy", "ClientStopwatch", "stopwatch"]
