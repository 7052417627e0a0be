"""The rules that a scheme is made of: each is a few lines, frozen, and says where it comes from."""

from paceline.coordinator.asynchronous.rules.batch_rules import BalancedBatches, ByForecast, ByVersions, Full, Sizing
from paceline.coordinator.asynchronous.rules.compensation import Adaptive, Compensation, Constant
from paceline.coordinator.asynchronous.rules.damping import (
    Beyond,
    Damping,
    Exponential,
    Inverse,
    InverseNext,
    Polynomial,
    Share,
    Undamped,
)
from paceline.coordinator.asynchronous.rules.gates import Bounded, Fresh, Gate, Open, Ranged
from paceline.coordinator.asynchronous.rules.gathering import Each, Gathering, Mean, Paced

__all__ = [
    "Adaptive",
    "BalancedBatches",
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
    "Polynomial",
    "Ranged",
    "Share",
    "Sizing",
    "Undamped",
]
