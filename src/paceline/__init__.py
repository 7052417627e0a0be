"""Predict each training worker's next speed and size its next batch, so that no worker waits for another.

>>> import paceline
>>> predictor = paceline.EWMA(smoothing=0.5)
>>> predictor.reset(["gpu0", "gpu1"])
>>> predictor.observe(paceline.Report(samples=[64, 64], seconds=[0.25, 0.75]))
>>> paceline.split(predictor.predict().curves, global_batch=128).sizes
array([96, 32])
"""

from importlib.metadata import PackageNotFoundError, version

from paceline.coordinator import LoadBalancer, Policy
from paceline.datasets.trace import Trace
from paceline.predictors import EWMA, NARX, Auto, Forecast, LastValue, Predictor, Report
from paceline.solver import Split, split

try:
    __version__ = version("paceline")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "EWMA",
    "NARX",
    "Auto",
    "Forecast",
    "LastValue",
    "LoadBalancer",
    "Policy",
    "Predictor",
    "Report",
    "Split",
    "Trace",
    "split",
]
