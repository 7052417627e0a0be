"""What all tests share: Hypothesis measures no time, as machines are noisy, and draws the same examples every time.

``EXPLORE=1`` draws new ones: what fails then is printed as an example to add to the test.
"""

import gc
import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import settings

settings.register_profile("paceline", deadline=None, derandomize="EXPLORE" not in os.environ)
settings.load_profile("paceline")


# A shell that starts the tests in the background lets them ignore interrupts, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """What the imports made stays: to look through it at every collection of garbage takes a tenth of all the time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _logs_of_torchrun(tmp_path_factory):
    """Torchrun makes a folder for logs wherever it is told to; otherwise it leaves one in the system's for ever."""
    os.environ["PET_LOG_DIR"] = str(tmp_path_factory.mktemp("torchrun"))


if find_spec("flwr") is None:  # Flower has an environment of its own: make test-flower
    collect_ignore_glob = ["flower_app/*", "flower_simulation.py", "flower_processes.py"]


@pytest.fixture
def made(tmp_path):
    """Write a file of this name and content into the test's folder, and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
