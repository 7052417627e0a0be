"""The line that says what machine a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine(*packages: str) -> str:
    """Return processor, cores, and the versions of Python, numpy and ``packages``."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", *packages))
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    cpu_file = Path("/proc/cpuinfo")
    lines = cpu_file.read_text(encoding="utf-8").splitlines() if cpu_file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
