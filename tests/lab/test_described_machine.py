"""What a trace says of the machine on which it was recorded."""

import os
import platform
from datetime import UTC, datetime

import pytest
import torch

from paceline.lab.collect import machine as module


class Described:
    """Processors as the kernel describes them; None where it does not."""

    def __init__(self, text):
        self.text = text

    def __call__(self, path):
        assert path == "/proc/cpuinfo"
        return self

    def exists(self):
        return self.text is not None

    def read_text(self):
        return self.text


CORES = "processor\t: 0\nvendor: A\nmodel\t\t: 85\nmodel name\t: One: Core @ 2 GHz \n\nmodel name\t: Another\n"


@pytest.mark.parametrize(
    ("text", "cpu"), [(CORES, "One: Core @ 2 GHz"), ("processor\t: 0\nCPU part\t: 0xd0c\n", None), (None, None)]
)
def test_a_processor_is_that_of_the_first_core_or_else_the_kind_of_machine(monkeypatch, text, cpu):
    monkeypatch.setattr(module, "Path", Described(text))
    assert module.machine()["cpu"] == (cpu or platform.machine())


def test_a_machine_is_told_with_its_cores_its_kernel_its_versions_and_the_date(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-20-cloud-amd64")
    before = datetime.now(UTC).date().isoformat()
    found = module.machine()
    assert found["date"] in (before, datetime.now(UTC).date().isoformat())
    assert (found["cores"], found["kernel"], found["python"]) == ("7", "Linux 6.1.0", platform.python_version())
    assert found["torch"] == torch.__version__
