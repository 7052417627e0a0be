"""Real training in the order and at the times that a trace's worker speeds dictate: deterministic, on one machine."""

from paceline.eval.replay.asynchronous.events import Events
from paceline.eval.replay.asynchronous.race import Course, Race, race
from paceline.eval.replay.asynchronous.replay_tasks import TASKS, ReplayTask, task
from paceline.eval.replay.asynchronous.times import Times, graded_fleet

__all__ = ["TASKS", "Course", "Events", "Race", "ReplayTask", "Times", "graded_fleet", "race", "task"]
