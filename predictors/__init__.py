"""The contract of every predictor, and the predictors that keep it."""

from paceline._curves import Curves
from paceline.predictors import checks
from paceline.predictors.arima import ARIMA
from paceline.predictors.auto import Auto
from paceline.predictors.averages import EWMA, HuberEWMA, LastValue, LocalLevel
from paceline.predictors.batch_time import BatchTime
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.events import PeriodicEvents
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.gated_narx import GatedNARX
from paceline.predictors.linear import RLS
from paceline.predictors.mixture import Mixture
from paceline.predictors.named import name_of, named, register
from paceline.predictors.narx import NARX
from paceline.predictors.network import Training
from paceline.predictors.protocol import Forecast, Predictor, Report
from paceline.predictors.recurrent import LSTM, SimpleRNN
from paceline.predictors.search import LeaderSearch

KINDS: tuple[type[FleetPredictor], ...] = (
    LastValue,
    EWMA,
    HuberEWMA,
    LocalLevel,
    ARIMA,
    NARX,
    GatedNARX,
    SimpleRNN,
    LSTM,
    BatchTime,
    RLS,
    Mixture,
    Calibrated,
    PeriodicEvents,
    LeaderSearch,
    Auto,
)
"""Every predictor that comes with the library."""

NAMES: tuple[str, ...] = tuple(map(name_of, KINDS))
"""The name of each as typed on the command line: ``huber-ewma`` for HuberEWMA."""

register(*KINDS)

__all__ = [
    "ARIMA",
    "EWMA",
    "KINDS",
    "LSTM",
    "NAMES",
    "NARX",
    "RLS",
    "Auto",
    "BatchTime",
    "Calibrated",
    "Curves",
    "FleetPredictor",
    "Forecast",
    "GatedNARX",
    "HuberEWMA",
    "LastValue",
    "LeaderSearch",
    "LocalLevel",
    "Mixture",
    "PeriodicEvents",
    "Predictor",
    "Report",
    "SimpleRNN",
    "Training",
    "checks",
    "named",
    "register",
]
