"""The promise of every predictor, and the predictors that keep it."""

from paceline.predictors.forecast import Curves, Forecast
from paceline.predictors.protocol import Predictor
from paceline.predictors.report import Report
from paceline.predictors.simple import EWMA, LastValue

__all__ = ["EWMA", "Curves", "Forecast", "LastValue", "Predictor", "Report"]
