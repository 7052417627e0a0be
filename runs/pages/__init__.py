"""Report pages of runs."""
