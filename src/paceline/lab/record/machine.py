"""Describe this machine, for the ``meta`` of a trace recorded on it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    """Return processor, cores, kernel, versions and today's date.

    >>> sorted(machine())
    ['cores', 'cpu', 'date', 'kernel', 'python', 'torch']
    """
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
