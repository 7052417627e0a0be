"""Fit predictors to traces, and save them in model files."""

from paceline.training.fit import fit
from paceline.training.models import describe_model, load_model, save_model

__all__ = ["describe_model", "fit", "load_model", "save_model"]
