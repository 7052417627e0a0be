"""Drawing that all figures share: colours, and names that are safe to draw."""

from __future__ import annotations

from paceline._printable import printable

BLACK, GREY, BLUE, GREEN, VERMILION = "#000000", "#767676", "#0072B2", "#009E73", "#D55E00"
"""Colours that colour-blind readers can distinguish as well (Okabe and Ito's palette)."""


def plain(name: str) -> str:
    """Return a name escaped for matplotlib: ``$`` would start a formula."""
    return printable(name).replace("$", r"\$")
