"""Forecasts in, batch sizes out, or samples of unequal cost assigned to ranks, or packed into their micro-batches."""

from paceline.solver.assign import Assignment, AssignmentStatus, assign
from paceline.solver.goodput import Goodput, best_batch
from paceline.solver.load import BatchTimeCurves
from paceline.solver.pack import Packing, PackingStatus, TokenCost, pack
from paceline.solver.risk import caution, cautious
from paceline.solver.split import Split, Status, evaluate, split

__all__ = [
    "Assignment",
    "AssignmentStatus",
    "BatchTimeCurves",
    "Goodput",
    "Packing",
    "PackingStatus",
    "Split",
    "Status",
    "TokenCost",
    "assign",
    "best_batch",
    "caution",
    "cautious",
    "evaluate",
    "pack",
    "split",
]
