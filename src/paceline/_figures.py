"""Drawing that all figures share: colors, and names that are safe to draw."""

from __future__ import annotations

from paceline._printable import printable

BLACK, GRAY, BLUE, GREEN, VERMILION = "#000000", "#767676", "#0072B2", "#009E73", "#D55E00"
"""Colors that color-blind readers can distinguish as well (Okabe and Ito's palette)."""


def plain(name: str) -> str:
    """Return a name escaped for matplotlib: ``$`` would start a formula."""
    return printable(name).replace("$", r"\$")
