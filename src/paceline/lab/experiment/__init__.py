"""The live experiment: a real training on this machine, equal batches against balanced ones, in turns of one run."""

from paceline.lab.contention.disturbance import DISTURBANCES
from paceline.lab.experiment.asynchronous import AsyncOutcome, AsyncRow, AsyncSetting
from paceline.lab.experiment.conduct import asynchronous_experiment, can_set_quotas, experiment
from paceline.lab.experiment.experiment_tasks import TASKS
from paceline.lab.experiment.outcome import ExperimentOutcome, Row
from paceline.lab.experiment.setting import CONTROL, EQUAL, Setting

__all__ = [
    "CONTROL",
    "DISTURBANCES",
    "EQUAL",
    "TASKS",
    "AsyncOutcome",
    "AsyncRow",
    "AsyncSetting",
    "ExperimentOutcome",
    "Row",
    "Setting",
    "asynchronous_experiment",
    "can_set_quotas",
    "experiment",
]
