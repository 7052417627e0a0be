"""What a rank's gradients weigh: the batch behind them, its loss terms, and the hooks on the model."""
