"""What all tests share: Hypothesis measures no time, as machines are shared and noisy."""

from hypothesis import settings

settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")
