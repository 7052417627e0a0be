"""Forecasts in, batch sizes out, or samples of unequal cost assigned to ranks, or packed into their micro-batches."""

from paceline.solver.assign import Assignment, AssignmentStatus, assign
from paceline.solver.pack import Packing, PackingStatus, TokenCost, pack
from paceline.solver.split import Split, SplitStatus, evaluate, safety_factor, split

__all__ = [
    "Assignment",
    "AssignmentStatus",
    "Packing",
    "PackingStatus",
    "Split",
    "SplitStatus",
    "TokenCost",
    "assign",
    "evaluate",
    "pack",
    "safety_factor",
    "split",
]
