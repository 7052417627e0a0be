"""The live experiment: a real training on this machine, equal batches against balanced ones, in turns of one run."""

from paceline.lab.asynchronous import AsyncOutcome, AsyncRow, AsyncSetting
from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.experiment import asynchronous_experiment, can_set_quotas, experiment
from paceline.lab.outcome import ExperimentOutcome, Row
from paceline.lab.setting import CONTROL, EQUAL, TASKS, Setting

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
