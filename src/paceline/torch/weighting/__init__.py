"""Weighting of a rank's gradients: the batch behind them, its loss terms, and the hooks on the model."""
