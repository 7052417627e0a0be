"""Balanced training under the trainers that people use, a file each: Accelerate, Fabric, Hugging Face, Lightning.

Each needs its library and is imported by its name, such as ``paceline.coordinator.trainers.lightning``.
"""

from paceline._require import require

require("torch", needed_by="paceline.coordinator.trainers", extra="torch")
