"""Runs the job of a trainer once, for all tests that ask what came out. It imports nothing heavy itself."""

import importlib.util
import json
import os

import pytest
from ranks import run_ranks

EXACT = 1e-12


def require(*libraries):
    """Skip the file that calls this where a library is missing."""
    for library in ("torch", *libraries):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed", allow_module_level=True)


def run(job, folder):
    """Run ``main`` of ``tests/<job>.py`` on two ranks joined by gloo, and return what the first found.

    Under "one device" stands what ``one_device`` of the same file found in a process without ranks.
    """
    run_ranks(1, _forked, job, folder, within=150, joined=False)
    return json.loads((folder / "outcomes.json").read_text("utf-8"))


def _forked(_, job, folder):
    """Import the job's libraries once, and fork its ranks."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    job = importlib.import_module(job)
    job.trainers.fork(job, folder)


def assert_exact(found):
    """Fail unless a balanced model ended where one process on the same global batches does, with uneven batches."""
    assert found["distance"] < EXACT
    assert found["uneven"] >= 0.5, "sizes hardly differed, so nothing was tested"
