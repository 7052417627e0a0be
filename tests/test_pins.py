"""Every package that pyproject.toml names in an extra has a pinned version, within its range."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from renew_pins import HELD, INSTALLS, normal, written

CHECKOUT = Path(__file__).parent.parent
FILE_OF = {"flower": "constraints-flower.txt", "peers": "constraints-peers.txt"}
"""Extras whose packages want older versions of what others here need."""

pytestmark = pytest.mark.checkout


def project():
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]


def pinned(file):
    lines = (CHECKOUT / file).read_text().splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}


def wanted():
    """Yield each package that pyproject.toml names, with the file that pins it."""
    named = {"": project()["dependencies"], **project()["optional-dependencies"]}
    for extra, packages in named.items():
        for one in map(Requirement, packages):
            if one.name != "paceline":
                yield one, FILE_OF.get(extra, "constraints.txt")


def test_every_package_of_every_extra_is_pinned():
    assert [f"{one.name} in {file}" for one, file in wanted() if normal(one.name) not in pinned(file)] == []


def test_every_pin_lies_within_its_range():
    outside = [
        f"{one} in {file}"
        for one, file in wanted()
        if not one.specifier.contains(pinned(file)[normal(one.name)], prereleases=True)
    ]
    assert outside == []


def test_what_an_imported_library_brings_is_pinned_too():
    assert "torchmetrics" in pinned("constraints.txt"), "Lightning's own dependency"


@pytest.mark.parametrize("file", INSTALLS)
def test_a_file_of_pins_says_how_it_is_renewed_and_holds_what_is_held(file):
    header = "".join(line for line in (CHECKOUT / file).read_text().splitlines(keepends=True) if line.startswith("#"))
    assert "`make pins`" in header
    assert re.search(r"^pins:.*##", (CHECKOUT / "Makefile").read_text(), re.M)
    versions = pinned(file)
    for name, version in HELD.items():
        assert versions.get(name, version) == version
        assert f"{name} is held at {version}" in header


def test_renewing_leaves_out_the_library_itself_and_what_only_gpus_need():
    found = {"paceline": "0.1", "nvidia-cublas": "12", "triton": "3", "nvidia-ml-py": "13", "Zict": "3", "attrs": "26"}
    lines = [line for line in written("constraints.txt", found).splitlines() if not line.startswith("#")]
    assert lines == ["attrs==26", "nvidia-ml-py==13", "Zict==3"]
