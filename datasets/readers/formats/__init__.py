"""Formats of traces recorded by others: one file per family, each with its list ``FORMATS`` at the end."""
