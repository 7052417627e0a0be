"""Readers of the formats of others, one file for each family."""
