"""Stopwatches for PyTorch: what a step does when, where a process waits for others, and marks on CPU and GPU."""

from paceline.recording.torch.watch import Watch, watch

__all__ = ["Watch", "watch"]
