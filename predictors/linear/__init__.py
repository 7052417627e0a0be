"""Linear models that learn while they serve: one per worker, or one for the fleet."""

from paceline.predictors.linear.rls import RLS

__all__ = ["RLS"]
