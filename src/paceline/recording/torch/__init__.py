"""Stopwatches for PyTorch: the phases of a step, the waits for other processes, and events in time on CPU and GPU."""

from paceline.recording.torch.watch import Watch, watch

__all__ = ["Watch", "watch"]
