"""``paceline record`` and ``audit`` put this folder first on Python's path; do not import anything from it."""
