"""Synthetic fleets of two independent families: one to develop with, one to measure on only."""

from paceline.datasets.synthetic.fleets import KINDS, oracle_speed, synthetic_fleet
from paceline.datasets.synthetic.hosted import KINDS as HOSTED
from paceline.datasets.synthetic.hosted import hosted_fleet

__all__ = ["HOSTED", "KINDS", "hosted_fleet", "oracle_speed", "synthetic_fleet"]
