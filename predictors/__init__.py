"""The promise of every predictor, and the predictors that keep it."""

from paceline.predictors.arima import ARIMA
from paceline.predictors.auto import Auto
from paceline.predictors.barrier import BarrierHead
from paceline.predictors.batch_time import BatchTime
from paceline.predictors.boosting import Boosting
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.changes import ChangePoint
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.forecast import Curves, Forecast
from paceline.predictors.gated import GatedNARX
from paceline.predictors.mixture import Mixture
from paceline.predictors.named import KINDS, NAMES, named
from paceline.predictors.narx import NARX
from paceline.predictors.neural import Training
from paceline.predictors.protocol import Predictor
from paceline.predictors.recurrent import GRU, LSTM, SimpleRNN
from paceline.predictors.report import Report
from paceline.predictors.rls import RLS
from paceline.predictors.simple import EWMA, Holt, HuberEWMA, LastValue
from paceline.predictors.windows import MovingAverage, RunningMedian

__all__ = [
    "ARIMA",
    "EWMA",
    "GRU",
    "KINDS",
    "LSTM",
    "NAMES",
    "NARX",
    "RLS",
    "Auto",
    "BarrierHead",
    "BatchTime",
    "Boosting",
    "Calibrated",
    "ChangePoint",
    "Curves",
    "FleetPredictor",
    "Forecast",
    "GatedNARX",
    "Holt",
    "HuberEWMA",
    "LastValue",
    "Mixture",
    "MovingAverage",
    "Predictor",
    "Report",
    "RunningMedian",
    "SimpleRNN",
    "Training",
    "named",
]
