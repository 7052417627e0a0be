"""Start processes on this machine, keep them apart, watch them, and never leave one behind."""
