"""The loader: what each rank gets of every global batch, dealt exactly once an epoch, and how it is loaded."""

from paceline.coordinator.torch.loading.loader import BalancedLoader

__all__ = ["BalancedLoader"]
