"""Contention: which processes compete with which worker, and when; and the competing processes themselves."""
