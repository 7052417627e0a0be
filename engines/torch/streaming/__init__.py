"""Balance data that have no numbers: streams, read by every rank, of which each keeps its part."""

from paceline.engines.torch.streaming.stream_loader import StreamLoader

__all__ = ["StreamLoader"]
