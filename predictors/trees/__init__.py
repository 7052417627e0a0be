"""Regression trees: fitted by scikit-learn, served by numpy."""

from paceline.predictors.trees.boosting import Boosting

__all__ = ["Boosting"]
