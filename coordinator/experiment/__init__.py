"""The live experiment: a real training on this machine, equal batches against balanced ones, in turns of one run."""

from paceline.coordinator.experiment.outcome import Outcome, Row
from paceline.coordinator.experiment.run import can_set_quotas, experiment
from paceline.coordinator.experiment.setting import CONTENTIONS, CONTROL, EQUAL, Setting
from paceline.coordinator.experiment.tasks import TASKS

__all__ = ["CONTENTIONS", "CONTROL", "EQUAL", "TASKS", "Outcome", "Row", "Setting", "can_set_quotas", "experiment"]
