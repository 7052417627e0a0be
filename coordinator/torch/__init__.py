"""Load-balanced training on PyTorch."""
