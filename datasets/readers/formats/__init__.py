"""Formats of traces that others recorded: one file for each family, listed in ``FORMATS`` at its end."""
