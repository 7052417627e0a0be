"""Predict each training worker's next speed and size its next batch, so that no worker waits for another.

>>> import paceline
>>> predictor = paceline.EWMA(smoothing=0.5)
>>> predictor.reset(["gpu0", "gpu1"])
>>> predictor.observe(paceline.Report(samples=[64, 64], seconds=[0.25, 0.75]))
>>> paceline.split(predictor.predict().curves, global_batch=128).sizes
array([96, 32])
"""

from paceline._version import __version__
from paceline.coordinator import LoadBalancer, Policy
from paceline.datasets.trace import Trace
from paceline.predictors import EWMA, NARX, Auto, Forecast, LastValue, Predictor, Report
from paceline.solver import Split, split

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
    "__version__",
    "split",
]
