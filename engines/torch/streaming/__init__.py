"""Balance data that have no numbers: streams. Every rank reads the whole stream and keeps its part."""

from paceline.engines.torch.streaming.stream_loader import StreamLoader

__all__ = ["StreamLoader"]
