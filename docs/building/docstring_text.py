"""Docstrings as the site shows them."""

from __future__ import annotations

import re

ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([^`]+)`")
FIRST_EXAMPLE = re.compile(r"^>>> ", re.MULTILINE)
SECTION = re.compile(r"^Examples\n-+$", re.MULTILINE)


def shown(text: str) -> str:
    r"""Return a docstring as it is shown.

    >>> shown("Add: see :func:`paceline.add`.\n\n>>> 1 + 1\n2")
    'Add: see `paceline.add`.\n\nExamples\n--------\n>>> 1 + 1\n2'
    """
    text = ROLE.sub(r"`\1`", text)
    first = FIRST_EXAMPLE.search(text)
    if first and not SECTION.search(text):
        text = f"{text[: first.start()]}Examples\n--------\n{text[first.start() :]}"
    return text
