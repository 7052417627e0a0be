"""Asynchronous training that limits staleness without waiting (SaPS), and its neighbours.

The server is pure: no threads, files or clock. Schemes are the same server with other rules: see
:mod:`paceline.coordinator.asynchronous.schemes`.
"""

from paceline.coordinator.asynchronous.foresight.staleness import Calibration, Sighting, expected_staleness, stragglers
from paceline.coordinator.asynchronous.ledger import Ledger, Outcome
from paceline.coordinator.asynchronous.optimiser import SGD, Optimiser, Vector
from paceline.coordinator.asynchronous.sampler import Deck, Hand
from paceline.coordinator.asynchronous.schemes import SCHEMES, Scheme, saps, scheme
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.verdict import Pulled, Verdict
from paceline.coordinator.asynchronous.workers import Stamp

__all__ = [
    "SCHEMES",
    "SGD",
    "Calibration",
    "Deck",
    "Hand",
    "Ledger",
    "Optimiser",
    "Outcome",
    "Pulled",
    "Scheme",
    "Server",
    "Sighting",
    "Stamp",
    "Vector",
    "Verdict",
    "expected_staleness",
    "saps",
    "scheme",
    "stragglers",
]
