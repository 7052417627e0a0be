"""Real training jobs on this machine under contention, for ``paceline demo`` and ``paceline live``."""
