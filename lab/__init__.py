"""Run and disturb real training jobs on this machine, to record them and to try balancing on them.

``record/`` records jobs under ``contention/``, ``experiment/`` trains with balanced and equal batches in turns, and
``processes/`` starts, separates and ends the processes that both need.
"""

from paceline.lab.contention.contention import USAGE, Contention
from paceline.lab.contention.patterns import PATTERNS, Competitor, plan
from paceline.lab.contention.usage import Usage, load_without_averaging
from paceline.lab.processes.places import places
from paceline.lab.record.jobs import JOBS, Job
from paceline.lab.record.made_job import record_job
from paceline.lab.small_models import MODELS
from paceline.recording.place import Place

__all__ = [
    "JOBS",
    "MODELS",
    "PATTERNS",
    "USAGE",
    "Competitor",
    "Contention",
    "Job",
    "Place",
    "Usage",
    "load_without_averaging",
    "places",
    "plan",
    "record_job",
]
