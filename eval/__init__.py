"""Measure how good predictors and balancing are: backtests, the leaderboard, and replays of recorded jobs."""

from paceline.eval.backtest import Backtest, BacktestStep, backtest, barrier_overhead, iter_backtest
from paceline.eval.leaderboard import Leaderboard, leaderboard
from paceline.eval.replay import (
    Balanced,
    EqualBatches,
    Oracle,
    Replay,
    ReplayedIteration,
    Replays,
    SizeScheme,
    iter_replay,
    replay,
    replay_all,
)
from paceline.eval.significance import ErrorComparison, compare
from paceline.eval.simulate import Simulation, from_profiles, from_speeds, simulate

__all__ = [
    "Backtest",
    "BacktestStep",
    "Balanced",
    "EqualBatches",
    "ErrorComparison",
    "Leaderboard",
    "Oracle",
    "Replay",
    "ReplayedIteration",
    "Replays",
    "Simulation",
    "SizeScheme",
    "backtest",
    "barrier_overhead",
    "compare",
    "from_profiles",
    "from_speeds",
    "iter_backtest",
    "iter_replay",
    "leaderboard",
    "replay",
    "replay_all",
    "simulate",
]
