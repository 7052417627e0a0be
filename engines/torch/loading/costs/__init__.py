"""Costs of samples: numbers from arrays, columns or functions, and the division of global batches by them."""
