"""The loader: which samples each rank gets of every global batch, each once an epoch, and how they are loaded."""

from paceline.engines.torch.loading.balanced_loader import BalancedLoader

__all__ = ["BalancedLoader"]
