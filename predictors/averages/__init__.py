"""Averages: the last speed, and past speeds smoothed in one way or another."""

from paceline.predictors.averages.change_point import ChangePoint
from paceline.predictors.averages.smoothed import EWMA, Holt, HuberEWMA, LastValue
from paceline.predictors.averages.windows import MovingAverage, RunningMedian

__all__ = ["EWMA", "ChangePoint", "Holt", "HuberEWMA", "LastValue", "MovingAverage", "RunningMedian"]
