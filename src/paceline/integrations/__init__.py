"""Balanced training with popular trainers, one file each: Accelerate, Hugging Face, Lightning, torchft.

Each file needs its library; import it by its full name, such as ``paceline.integrations.lightning``.
"""

from paceline._require import require

require("torch", needed_by="paceline.integrations", extra="torch")
