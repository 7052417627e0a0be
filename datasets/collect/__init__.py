"""Recording real training jobs under real contention on one machine."""

from paceline.datasets.collect.beside import Contention
from paceline.datasets.collect.contention import PATTERNS, Competitor, plan
from paceline.datasets.collect.jobs import JOBS, USAGE, Job
from paceline.datasets.collect.limits import Place, places
from paceline.datasets.collect.models import MODELS
from paceline.datasets.collect.run import collect
from paceline.datasets.collect.usage import Usage, load_without_averaging

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
    "collect",
    "load_without_averaging",
    "places",
    "plan",
]
