"""Recording real training jobs under real contention on one machine."""

from paceline.datasets.collect.contention import PATTERNS, Competitor, plan
from paceline.datasets.collect.jobs import JOBS, Job
from paceline.datasets.collect.limits import Place, places
from paceline.datasets.collect.models import MODELS
from paceline.datasets.collect.run import collect

__all__ = ["JOBS", "MODELS", "PATTERNS", "Competitor", "Job", "Place", "collect", "places", "plan"]
