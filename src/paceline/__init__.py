"""Predict each training worker's next speed and size its next batch, so that no worker waits for another."""
