"""Recording other people's training loops: PyTorch's own, Lightning's and Hugging Face's.

Each file needs the library that it adapts to, and loads it when it is used.
"""

from pathlib import Path

from paceline.datasets.adapters.hugging_face import trainer_callback
from paceline.datasets.adapters.lightning import lightning_callback
from paceline.datasets.adapters.watch import Watch, watch

__all__ = ["Watch", "lightning_callback", "startup_folder", "trainer_callback", "watch"]


def startup_folder() -> Path:
    """Return the folder that, first on Python's path, has every DistributedDataParallel watched."""
    return Path(__file__).parent / "startup"
