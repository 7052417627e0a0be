"""Real training in the order and at the times that a trace's worker speeds dictate: deterministic, on one machine."""

from paceline.lab.replay.events import Events
from paceline.lab.replay.race import Course, Race, race
from paceline.lab.replay.tasks import TASKS, Task, task
from paceline.lab.replay.times import Times, graded_fleet

__all__ = ["TASKS", "Course", "Events", "Race", "Task", "Times", "graded_fleet", "race", "task"]
