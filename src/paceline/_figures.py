"""Drawing that all figures share: colours, names that are safe to draw, and files that are whole or not there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._printable import printable
from paceline._require import require
from paceline._whole import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, GREY, BLUE, GREEN, VERMILION = "#000000", "#767676", "#0072B2", "#009E73", "#D55E00"
"""Colours that colour-blind readers can distinguish as well (Okabe and Ito's palette)."""


def plain(name: str) -> str:
    """Return a name escaped for matplotlib: ``$`` would start a formula."""
    return printable(name).replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Return a report's picture, without the lines above and to the right of its panels."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches."""
    require("matplotlib", needed_by="figures", extra="plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def saved(figure: Any, path: str | Path) -> Path:
    """Write a figure whole, in the format that the suffix names, and return its path."""
    path = Path(path)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path
