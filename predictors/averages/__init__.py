"""Averages: the last speed, and several kinds of averages of past speeds."""

from paceline.predictors.averages.local_level import LocalLevel
from paceline.predictors.averages.smoothed import EWMA, HuberEWMA, LastValue
from paceline.predictors.averages.windows import RunningMedian

__all__ = ["EWMA", "HuberEWMA", "LastValue", "LocalLevel", "RunningMedian"]
