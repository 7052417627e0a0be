"""A running job in the terminal: ``paceline watch``."""
