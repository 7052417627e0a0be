"""Averages: the last speed, and several kinds of averages of past speeds."""

from paceline.predictors.averages.change_point import ChangePoint
from paceline.predictors.averages.local_level import LocalLevel
from paceline.predictors.averages.smoothed import EWMA, Holt, HuberEWMA, LastValue
from paceline.predictors.averages.windows import MovingAverage, RunningMedian

__all__ = ["EWMA", "ChangePoint", "Holt", "HuberEWMA", "LastValue", "LocalLevel", "MovingAverage", "RunningMedian"]
