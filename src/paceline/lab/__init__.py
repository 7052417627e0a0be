"""The live experiment: a real training on this machine, equal batches against balanced ones, in turns of one run."""

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.experiment import CONTROL, EQUAL, ExperimentOutcome, Row, Setting, can_set_quotas, experiment
from paceline.lab.tasks import TASKS

__all__ = [
    "CONTROL",
    "DISTURBANCES",
    "EQUAL",
    "TASKS",
    "ExperimentOutcome",
    "Row",
    "Setting",
    "can_set_quotas",
    "experiment",
]
