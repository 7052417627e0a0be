"""Batch time curves: for devices whose time is not proportional to the batch."""

from paceline.predictors.batch_time.batch_time import BatchTime

__all__ = ["BatchTime"]
