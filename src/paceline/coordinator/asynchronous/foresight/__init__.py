"""Forecasts of an asynchronous fleet: speeds of workers, staleness of their pushes, and stragglers."""
