"""Load-balanced training on PyTorch: a loader whose batches follow each rank's speed, and one call to attach it."""

from paceline._require import require

require("torch", needed_by="paceline.torch", extra="torch")

from paceline.engines.torch.attach import attach  # noqa: E402
from paceline.engines.torch.balance import Balance  # noqa: E402
from paceline.engines.torch.gather import gather_rows  # noqa: E402
from paceline.engines.torch.loading.balanced_loader import BalancedLoader  # noqa: E402
from paceline.engines.torch.loading.costs.costs import Costs  # noqa: E402
from paceline.engines.torch.reporting.exchange import LostRankError  # noqa: E402
from paceline.engines.torch.streaming.stream_loader import StreamLoader  # noqa: E402
from paceline.engines.torch.weighting.listener import BalanceWarning  # noqa: E402
from paceline.engines.torch.weighting.terms import Terms, weight_terms  # noqa: E402
from paceline.runs.iteration import Iteration  # noqa: E402 (the sentence about a missing torch comes first)

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
    "weight_terms",
]
