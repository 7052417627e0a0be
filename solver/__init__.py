"""Forecasts in, batch sizes out: the exact split of a global batch over workers of different speed."""

from paceline.solver.goodput import Goodput, best_batch
from paceline.solver.load import BatchTimeCurves
from paceline.solver.risk import caution, cautious
from paceline.solver.split import Split, Status, evaluate, split

__all__ = ["BatchTimeCurves", "Goodput", "Split", "Status", "best_batch", "caution", "cautious", "evaluate", "split"]
