"""Record jobs on this machine: the built-in ones, and unedited commands."""

from paceline.lab.collect.command import collect_command
from paceline.lab.collect.jobs import JOBS, Job
from paceline.lab.collect.record_job import collect

__all__ = ["JOBS", "Job", "collect", "collect_command"]
