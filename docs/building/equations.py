"""Equations of a page as MathML, which browsers draw without a script: ``$$...$$`` as a block, ``$...$`` in a line."""

from __future__ import annotations

import re

from links import parts

BLOCK = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\\$\w`])\$(?![\s$])([^$\n`]+?)(?<!\s)\$(?![\w$])")
CODE = re.compile(r"(`+[^`]*`+)")


def with_equations(text: str) -> str:
    """Return a page's text with its equations as MathML; code stays as it is."""
    return "".join(part if fenced else _drawn(part) for part, fenced in parts(text))


def _drawn(text: str) -> str:
    from latex2mathml.converter import convert

    text = BLOCK.sub(lambda match: _one_line(convert(match[1], display="block")), text)
    pieces = CODE.split(text)
    pieces[::2] = [INLINE.sub(lambda match: _one_line(convert(match[1])), piece) for piece in pieces[::2]]
    return "".join(pieces)


def _one_line(mathml: str) -> str:
    """Return MathML without line ends, and with the signs that Markdown would read written out."""
    return mathml.replace("\n", "").replace("*", "&#42;").replace("_", "&#95;")
