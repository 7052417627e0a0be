"""Measure how good predictors and balancing are: backtests, the leaderboard, and replays of recorded jobs."""

from paceline.eval.backtest import Backtest, Step, backtest, iter_backtest
from paceline.eval.figures import leaderboard_figure, replay_figure
from paceline.eval.leaderboard import Leaderboard, leaderboard
from paceline.eval.overhead import barrier_overhead
from paceline.eval.replay import Iteration, Replay, Replays, iter_replay, replay, replay_all
from paceline.eval.schemes import Balanced, Clairvoyant, EqualBatches, Scheme
from paceline.eval.worth import Worth, worth

__all__ = [
    "Backtest",
    "Balanced",
    "Clairvoyant",
    "EqualBatches",
    "Iteration",
    "Leaderboard",
    "Replay",
    "Replays",
    "Scheme",
    "Step",
    "Worth",
    "backtest",
    "barrier_overhead",
    "iter_backtest",
    "iter_replay",
    "leaderboard",
    "leaderboard_figure",
    "replay",
    "replay_all",
    "replay_figure",
    "worth",
]
