"""Forecasts in, batch sizes or samples out: the exact split of a batch, and who takes samples of unequal cost."""

from paceline.solver.assign import Assignment, AssignmentStatus, assign
from paceline.solver.goodput import Goodput, best_batch
from paceline.solver.load import BatchTimeCurves
from paceline.solver.risk import caution, cautious
from paceline.solver.split import Split, Status, evaluate, split

__all__ = [
    "Assignment",
    "AssignmentStatus",
    "BatchTimeCurves",
    "Goodput",
    "Split",
    "Status",
    "assign",
    "best_batch",
    "caution",
    "cautious",
    "evaluate",
    "split",
]
