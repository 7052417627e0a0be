"""Pictures of a trace's health and of batch time curves."""
