"""Averages: the last speed, and several kinds of averages of past speeds."""

from paceline.predictors.averages.change_point import ChangePoint
from paceline.predictors.averages.local_level import LocalLevel
from paceline.predictors.averages.smoothed import EWMA, HuberEWMA, LastValue
from paceline.predictors.averages.windows import RunningMedian

__all__ = ["EWMA", "ChangePoint", "HuberEWMA", "LastValue", "LocalLevel", "RunningMedian"]
