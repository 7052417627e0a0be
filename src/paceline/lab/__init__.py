"""The live experiment: a real training on this machine, equal batches against balanced ones, in turns of one run."""

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.experiment import (
    CONTROL,
    EQUAL,
    GLOBAL_BATCH,
    ExperimentOutcome,
    ExperimentSetting,
    SchemeResult,
    can_set_quotas,
    experiment,
)

__all__ = [
    "CONTROL",
    "DISTURBANCES",
    "EQUAL",
    "GLOBAL_BATCH",
    "ExperimentOutcome",
    "ExperimentSetting",
    "SchemeResult",
    "can_set_quotas",
    "experiment",
]
