"""What a rank's gradients count: the batch behind them, its loss terms, and the hooks on the model."""
