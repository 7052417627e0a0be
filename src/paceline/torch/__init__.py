"""Balanced training on PyTorch: a loader whose batches follow each rank's speed, and one call to attach it."""

from typing import TYPE_CHECKING, Any

from paceline._require import require

require("torch", needed_by="paceline.torch", extra="torch")

from paceline.coordinator import Policy  # noqa: E402 (the sentence about a missing torch comes first)
from paceline.recording.records import Iteration  # noqa: E402
from paceline.torch.attach import attach  # noqa: E402
from paceline.torch.balance import Balance, LossScaling  # noqa: E402
from paceline.torch.costs import Costs  # noqa: E402
from paceline.torch.counting import BalanceWarning, LoopError  # noqa: E402
from paceline.torch.exchange import LostRankError  # noqa: E402
from paceline.torch.gather import gather_rows  # noqa: E402
from paceline.torch.loader import BalancedLoader  # noqa: E402
from paceline.torch.local_sgd import LocalSGD  # noqa: E402
from paceline.torch.packed_collate import Flatten  # noqa: E402
from paceline.torch.stream_loader import StreamLoader  # noqa: E402

if TYPE_CHECKING:
    from paceline.audit.in_process import audit

__all__ = [
    "Balance",
    "BalanceWarning",
    "BalancedLoader",
    "Costs",
    "Flatten",
    "Iteration",
    "LocalSGD",
    "LoopError",
    "LossScaling",
    "LostRankError",
    "Policy",
    "StreamLoader",
    "attach",
    "audit",
    "gather_rows",
]


def __getattr__(name: str) -> Any:  # the audit imports this package
    if name == "audit":
        from paceline.audit.in_process import audit

        return audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
