"""Fit predictors to traces, and save them in model files."""

from paceline.predictors.fitting import FitProgress
from paceline.training.fit import Source, fit
from paceline.training.model_files import describe_model, load_model, save_model

__all__ = [
    "FitProgress",
    "Source",
    "describe_model",
    "fit",
    "load_model",
    "save_model",
]
