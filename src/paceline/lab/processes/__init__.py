"""Start, isolate, watch and end processes on this machine."""
