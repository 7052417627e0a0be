"""Engines carry out what a core decides: PyTorch, asynchronous PyTorch, Ray, Flower, and popular trainers."""
