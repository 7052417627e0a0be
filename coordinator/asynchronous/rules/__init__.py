"""The rules that a scheme is made of: each is a few lines, frozen, and says where it comes from."""

from paceline.coordinator.asynchronous.rules.batch_rules import Balanced, ByForecast, ByVersions, Full, Sizing
from paceline.coordinator.asynchronous.rules.compensation import Adaptive, Compensation, Constant
from paceline.coordinator.asynchronous.rules.damping import (
    Beyond,
    Damping,
    Exponential,
    Inverse,
    InverseNext,
    Pass,
    Polynomial,
    Share,
)
from paceline.coordinator.asynchronous.rules.gates import Bounded, Fresh, Gate, Open, Ranged
from paceline.coordinator.asynchronous.rules.gathering import Each, Gathering, Mean, Paced

__all__ = [
    "Adaptive",
    "Balanced",
    "Beyond",
    "Bounded",
    "ByForecast",
    "ByVersions",
    "Compensation",
    "Constant",
    "Damping",
    "Each",
    "Exponential",
    "Fresh",
    "Full",
    "Gate",
    "Gathering",
    "Inverse",
    "InverseNext",
    "Mean",
    "Open",
    "Paced",
    "Pass",
    "Polynomial",
    "Ranged",
    "Share",
    "Sizing",
]
