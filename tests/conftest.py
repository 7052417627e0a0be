"""What all tests share: Hypothesis measures no time, as machines are noisy, and draws the same examples in CI."""

import os

from hypothesis import settings

settings.register_profile("paceline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("paceline")
