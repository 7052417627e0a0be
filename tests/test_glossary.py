"""One word for one thing: the words that the glossary replaces are found nowhere."""

import functools
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
HISTORY = {"CHANGELOG.md", "benchmarks/mutants.md", "benchmarks/mutants.toml", "tests/test_glossary.py"}
"""What quotes the names of earlier versions, and what lists them."""

BUILT = ("build", "dist", "demo-output", "site")
"""Folders of what is made here."""

OF_OTHERS = re.compile(
    r"num_items_in_batch|modifyitems\(items\)|_arrange\(items\)|session\.items|\.items\("
    r"|log_to_driver|/proc/driver|_?driver\(|[\"{]driver[\"}]|its_driver_and|driver 600"
)
"""Names that are not ours: a Trainer's argument, a dict's method, Ray's option, the driver of a GPU."""


def replaced():
    rows = [line.split("|") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return [word.strip() for row in rows[1:] for word in row[4].split(",") if word.strip(" -")]


@functools.cache
def texts():
    return list(_texts())


def _texts():
    for folder, inside, files in os.walk(ROOT):
        inside[:] = [name for name in sorted(inside) if not name.startswith(".") and name not in BUILT]
        for path in (Path(folder, name) for name in sorted(files)):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md", ".toml", ".yml") and path != GLOSSARY and name not in HISTORY:
                yield name, path.read_text()


def found(word, text):
    """Lines with a word, also as a part of a name: ``driver_W`` and ``the_driver`` are the word ``driver``."""
    if not any(one in text.lower() for one in (word, word.replace(" ", "_"))):  # much the fastest
        return []
    spaced = re.escape(word).replace(r"\ ", "[ _]")
    pattern = re.compile(rf"(?<![a-z]){spaced}(?![a-z])", re.IGNORECASE)
    return [line for line in text.splitlines() if pattern.search(line) and pattern.search(OF_OTHERS.sub("", line))]


@pytest.mark.slow
@pytest.mark.parametrize("word", replaced())
def test_a_replaced_word_does_not_occur(word):
    lines = [f"{name}: {line.strip()[:100]}" for name, text in texts() for line in found(word, text)]
    assert not lines, "\n".join(lines[:20])


def test_a_replaced_word_would_be_seen():
    assert "driver" in replaced()
    assert "in vain" in replaced()
    assert found("driver", "driver_names_W = 1")
    assert found("in vain", "samples_in_vain")
    assert not found("driver", "Drivers")
    assert not found("items", "for key in known.items():")
