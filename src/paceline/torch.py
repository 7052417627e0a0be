"""Balanced training on PyTorch, as users import it: ``from paceline.torch import BalancedLoader, attach``."""

from paceline.audit import audit
from paceline.engines.torch import (
    Balance,
    BalancedLoader,
    BalanceWarning,
    Costs,
    Iteration,
    LostRankError,
    StreamLoader,
    Terms,
    attach,
    gather_rows,
    weight_terms,
)

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
    "audit",
    "gather_rows",
    "weight_terms",
]
