"""Asynchronous training with torch."""

from paceline.coordinator.asynchronous.torch.flat import FlatModel

__all__ = ["FlatModel"]
