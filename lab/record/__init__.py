"""Record jobs on this machine: the built-in ones, and unedited commands."""

from paceline.lab.record.command import record_command
from paceline.lab.record.jobs import JOBS, Job
from paceline.lab.record.made_job import record_job

__all__ = ["JOBS", "Job", "record_command", "record_job"]
