"""Processes of this machine: started, kept apart, watched, and never left behind."""
