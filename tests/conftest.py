"""What all tests share: Hypothesis measures no time, as machines are noisy, and draws the same examples every time.

``EXPLORE=1`` draws new ones: what fails then is printed as an example to add to the test. ``PACELINE_EXAMPLES=0.3``
draws three tenths of them.
"""

import functools
import gc
import os
import resource
import signal
from importlib.util import find_spec

import processes
import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

# What a user's shell says about colors and widths changes what rich and typer print, here and in started processes.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["TERM"] = "dumb"

settings.register_profile("paceline", deadline=None, derandomize="EXPLORE" not in os.environ)
settings.load_profile("paceline")


# Typer makes all commands anew, with all options, each time that one is called; they do not change between tests.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


# A shell that starts the tests in the background lets them ignore interrupts, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
    """Collect no garbage until all tests are collected: what is imported stays."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items):
    """Mark the tests that start processes; files that hold such come first, so that no long one is left for the end."""
    _arrange(items)


def _arrange(tests):
    for test in tests:
        if processes.starts_processes(test):
            test.add_marker("processes")
    _draw_fewer({test.obj for test in tests if hasattr(getattr(test, "obj", None), "hypothesis")})
    first = {test.path for test in tests if test.get_closest_marker("processes")}
    tests.sort(key=lambda test: test.path not in first)


def _draw_fewer(tests):
    """Let Hypothesis draw the share of examples that ``PACELINE_EXAMPLES`` names."""
    share = float(os.environ.get("PACELINE_EXAMPLES", 1.0))
    for test in tests if share < 1.0 else []:
        asked = getattr(test, "_hypothesis_internal_use_settings", None) or settings.default
        unhurt = [*asked.suppress_health_check, HealthCheck.filter_too_much]  # judged by few, some laws seem to filter
        fewer = settings(asked, max_examples=max(1, round(asked.max_examples * share)), suppress_health_check=unhurt)
        test._hypothesis_internal_use_settings = fewer


def pytest_ignore_collect(collection_path):
    """Leave out modules without tests: to import all of them for doctests that they lack takes a third of the start."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return ">>>" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_finish():
    """What the imports made stays: to look through it at every collection of garbage takes a tenth of all the time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_was_imported_since_stays():
    """The same for what a test imported: to look through torch and matplotlib again takes a third of a second."""
    gc.collect()
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


@pytest.fixture
def alone():
    """A job of one rank, in this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def room(request):
    """Return a function that lets files grow to so many bytes only; ``None`` takes the limit away."""
    before, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))

    test = request.node.obj

    @functools.wraps(test)
    def limited(**arguments):
        try:
            test(**arguments)
        finally:
            limit(None)  # before pytest writes its report, which may go to a file too

    request.node.obj = limited
    yield limit
    signal.signal(signal.SIGXFSZ, action)
