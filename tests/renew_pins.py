"""Renew the pinned versions: ``make pins`` resolves what pyproject.toml asks for, and writes the constraints.

Nothing is installed: pip only says which versions it would take. Run the tests with them before you keep them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HELD = {"torch": "2.13.0"}
"""Versions that are not the newest: the newest builds of torch for processors alone are not where the tests run."""

ABOUT = """\
# Versions of all that `pip install {installs}` takes; pyproject.toml gives the ranges.
# Renewed by `make pins`, which asks pip, on Python 3.11.
# torch is held at 2.13.0: no later build for processors alone could be had where the tests run, and the builds for GPUs
# take gigabytes of libraries that no test uses. Where you have a later one, take it: the range allows it.
"""

INSTALLS = {
    "constraints.txt": [".[dev]"],
    "constraints-flower.txt": [".[flower,lab]", "pytest", "pytest-timeout", "hypothesis", "psutil"],
    "constraints-peers.txt": [".[peers]"],
    "constraints-docs.txt": [".", "zensical", "mkdocstrings-python", "latex2mathml"],
}
"""What each file pins. Flower and the peers of the benchmarks want older versions, so each has a file of its own; the
site, whose tools nothing else needs, has one too."""

UNPINNED = re.compile(r"paceline|nvidia-(?!ml-py)|cuda-|triton")
"""The library itself, and what only torch's builds for GPUs take."""


def normal(name: str) -> str:
    """Return a package's name as indices compare it.

    >>> normal("Nvidia_ML.py")
    'nvidia-ml-py'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def resolved(installs: list[str]) -> dict[str, str]:
    """Return the version of each package that pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        held, report = Path(folder, "held.txt"), Path(folder, "report.json")
        held.write_text("".join(f"{name}=={version}\n" for name, version in HELD.items()))
        how = ["--dry-run", "--ignore-installed", "--quiet", "--constraint", held, "--report", report]
        subprocess.run([sys.executable, "-m", "pip", "install", *how, *installs], check=True)
        found = json.loads(report.read_text("utf-8"))["install"]
    return {one["metadata"]["name"]: one["metadata"]["version"].partition("+")[0] for one in found}


def written(file: str, versions: dict[str, str]) -> str:
    """Return the content of a file of constraints."""
    names = sorted((name for name in versions if not UNPINNED.match(normal(name))), key=str.lower)
    lines = [f"{name}=={versions[name]}\n" for name in names]
    return "".join([ABOUT.format(installs=" ".join(INSTALLS[file])), *lines])


def main() -> None:
    """Renew the files that are named, or all."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", default=list(INSTALLS), help="of %(default)s")
    for file in options.parse_args().files:
        Path(file).write_text(written(file, resolved(INSTALLS[file])))
        print(f"{file} is renewed: run the tests with it")


if __name__ == "__main__":
    main()
