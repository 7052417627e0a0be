"""Fit predictors to traces, and save them in model files."""

from paceline.predictors.fitting import Moment
from paceline.training.fit import fit
from paceline.training.models import describe_model, load_model, save_model
from paceline.training.progress import Bar, Scalars
from paceline.training.registry import Registry
from paceline.training.sources import Fact, LeftOut, Source

__all__ = [
    "Bar",
    "Fact",
    "LeftOut",
    "Moment",
    "Registry",
    "Scalars",
    "Source",
    "describe_model",
    "fit",
    "load_model",
    "save_model",
]
