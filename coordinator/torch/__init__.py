"""Load-balanced training on PyTorch: a loader whose batches follow each rank's speed, and one call to attach it."""

from paceline._require import require

require("torch", needed_by="paceline.coordinator.torch", extra="torch")

from paceline.coordinator.iteration import Iteration  # noqa: E402 (the sentence about a missing torch comes first)
from paceline.coordinator.torch.attach import attach  # noqa: E402
from paceline.coordinator.torch.balance import Balance  # noqa: E402
from paceline.coordinator.torch.gather import gather_rows  # noqa: E402
from paceline.coordinator.torch.loading.costs.costs import Costs  # noqa: E402
from paceline.coordinator.torch.loading.loader import BalancedLoader  # noqa: E402
from paceline.coordinator.torch.reporting.exchange import LostRankError  # noqa: E402
from paceline.coordinator.torch.streaming.loader import StreamLoader  # noqa: E402
from paceline.coordinator.torch.weighing.listener import BalanceWarning  # noqa: E402
from paceline.coordinator.torch.weighing.terms import Terms, weigh_terms  # noqa: E402

__all__ = [
    "Balance",
    "BalanceWarning",
    "BalancedLoader",
    "Costs",
    "Iteration",
    "LostRankError",
    "StreamLoader",
    "Terms",
    "attach",
    "gather_rows",
    "weigh_terms",
]
