"""Balanced training on PyTorch: a loader whose batches follow each rank's speed, and one call to attach it."""

from paceline._require import require

require("torch", needed_by="paceline.torch", extra="torch")

from paceline.recording.records import Iteration  # noqa: E402 (the sentence about a missing torch comes first)
from paceline.torch.attach import attach  # noqa: E402
from paceline.torch.balance import Balance, Scaling  # noqa: E402
from paceline.torch.costs import Costs  # noqa: E402
from paceline.torch.counting import BalanceWarning, LoopError  # noqa: E402
from paceline.torch.exchange import LostRankError  # noqa: E402
from paceline.torch.gather import gather_rows  # noqa: E402
from paceline.torch.loader import BalancedLoader  # noqa: E402
from paceline.torch.local_sgd import LocalSGD  # noqa: E402
from paceline.torch.packed_collate import Flatten  # noqa: E402
from paceline.torch.stream_loader import StreamLoader  # noqa: E402

__all__ = [
    "Balance",
    "BalanceWarning",
    "BalancedLoader",
    "Costs",
    "Flatten",
    "Iteration",
    "LocalSGD",
    "LoopError",
    "LostRankError",
    "Scaling",
    "StreamLoader",
    "attach",
    "gather_rows",
]
