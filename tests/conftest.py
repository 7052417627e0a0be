"""What all tests share: Hypothesis measures no time, as machines are noisy, and draws the same examples in CI."""

import os
from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("paceline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("paceline")

if find_spec("flwr") is None:  # Flower has an environment of its own: make test-flower
    collect_ignore_glob = ["flower_app/*", "flower_simulation.py", "flower_processes.py"]
