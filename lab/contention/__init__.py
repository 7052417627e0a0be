"""Contention: who competes with which worker, and when; and the processes that do."""
