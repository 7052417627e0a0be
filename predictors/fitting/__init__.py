"""Fits of predictors: on streams of traces, with held-out workers, a device, and progress."""

from paceline.predictors.fitting.options import FitProgress, Fitting, Streams, as_traces, fit_with
from paceline.predictors.fitting.survey import Survey

__all__ = ["FitProgress", "Fitting", "Streams", "Survey", "as_traces", "fit_with"]
