"""What all tests share: Hypothesis measures no time, as machines are noisy, and draws the same examples every time.

``EXPLORE=1`` draws new ones: what fails then is printed as an example to add to the test.
"""

import os

from hypothesis import settings

settings.register_profile("paceline", deadline=None, derandomize="EXPLORE" not in os.environ)
settings.load_profile("paceline")
