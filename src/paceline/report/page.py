"""A page: plain data, written as one HTML file that needs no other, and as JSON beside it.

Charts are drawn here, as SVG, and a script of two hundred lines lets readers point at them and zoom. Libraries that do
that were measured and left out: their scripts alone have 0.9 MB (Vega), 1.3 MB (Bokeh) and 4.8 MB (Plotly), where a
whole page has about 0.1 MB; and they draw when the script runs, so that nothing is there in print, in the dark, on a
phone or for a screen reader unless it is made once more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._printable import printable
from paceline._require import require
from paceline._version import __version__
from paceline._whole import require_writable, written_whole
from paceline.report import drawing
from paceline.report.blocks import ROWS, section, table
from paceline.report.shown import shown

if TYPE_CHECKING:
    from jinja2 import Environment

SCHEMA = 1
"""Version of the page's JSON; later ones are refused."""

TEMPLATE = Path(__file__).parent / "template"

Page = dict[str, Any]
"""A page: ``kind``, ``title``, ``verdict``, ``sections``, ``command``, the ``version`` that made it."""


def page(
    kind: str,
    title: str,
    verdict: Sequence[Mapping[str, Any]],
    sections: Sequence[Mapping[str, Any]],
    *,
    settings: Sequence[tuple[str, str]],
    data: Sequence[Sequence[Any]],
    command: str = "",
) -> Page:
    """Return a page of these parts, with what it was made from, and how it is made again, at its end.

    Parameters
    ----------
    kind
        What it is about: a run, an evaluation, a replay, an audit.
    title
        Its name.
    verdict
        Answers (:func:`paceline.report.shown.answer`), the most important first.
    sections
        Sections (:func:`paceline.report.blocks.section`).
    settings
        Names and values of what was chosen.
    data
        Name, size and SHA-256 of what was read.
    command
        The command that makes it again; empty if there is none.
    """
    origin = section(
        "Settings and data",
        "The same data and the same version make the same page, byte by byte.",
        table("Settings", (("setting", "text"), ("value", "text")), [*settings, ("paceline", __version__)]),
        table("Data", (("data", "text"), ("holds", "text"), ("SHA-256", "text")), data),
    )
    about = {"paceline_report": SCHEMA, "version": __version__, "kind": kind, "title": title, "command": command}
    made: Page = _known({**about, "verdict": list(verdict), "sections": [*sections, origin]})
    return made


def require_page(path: str | Path) -> None:
    """Raise an error unless a page can be written here: called before long work, not after it.

    Raises
    ------
    ValueError
        If the path does not end in ``.html``.
    ImportError
        If Jinja2 is missing.
    OSError
        If the folder does not exist or cannot be written, or a file of another kind is where the numbers would go.
    """
    path = Path(path)
    require("jinja2", needed_by="a report", extra="report")
    if path.suffix != ".html":
        raise ValueError(f"a report's path must end in .html, got {printable(str(path))}")
    require_writable(path)
    if path.exists() and not path.is_file():
        return  # a device or a pipe, which gets the page alone
    numbers = path.with_suffix(".json")
    if numbers.exists() and not is_page(numbers):
        raise FileExistsError(
            f"{printable(str(numbers))} exists and is not the JSON of a report, which would be written there: "
            f"name another page than {printable(str(path))}, or move the file"
        )
    require_writable(numbers)


def write_page(page: Page, path: str | Path) -> Path:
    """Write a page, and its data as JSON beside it with the suffix ``.json``; return the page's path.

    It raises what :func:`require_page` raises.
    """
    path = Path(path)
    require_page(path)
    made = {path: render(page)}
    if not path.exists() or path.is_file():
        made[path.with_suffix(".json")] = json.dumps(page, indent=1, allow_nan=False) + "\n"
    for file, text in made.items():
        with written_whole(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path


def is_page(path: Path) -> bool:
    """Return whether a file is the JSON of a report, or empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8") or '{"paceline_report": 1}')
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "paceline_report" in found


def read_page(path: str | Path) -> Page:
    """Read a page's JSON.

    Raises
    ------
    ValueError
        If the file is not the JSON of a report, or was written by a later version.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{printable(str(path))} is not JSON: {printable(str(error))}") from None
    schema = found.get("paceline_report") if isinstance(found, dict) else None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"{printable(str(path))} must be the JSON of a report, schema {SCHEMA} at most, "
            f"got {printable(str(schema))}: "
            "give a run's .jsonl file, what `paceline audit --json` printed, or the .json beside a report"
        )
    return dict(found)


def render(page: Page) -> str:
    """Return a page as HTML. Everything that comes from data is escaped, and control characters are shown."""
    style, script = ((TEMPLATE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template("page.html").render(page=_shown(page), style=style, script=script, digest=digest)


@cache
def _environment() -> Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "safe_css": Markup, "safe_script": Markup}
    environment.globals |= {name: getattr(drawing, name) for name in ("line_chart", "gantt_chart", "ranges", "within")}
    environment.globals |= {"ROWS": ROWS, "ROW": drawing.ROW}
    return environment


def _shown(value: Any) -> Any:
    """Return a value whose texts show their control characters, in charts' data as well."""
    if isinstance(value, Mapping):
        return {key: _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return printable(value) if isinstance(value, str) else value


def _known(value: Any) -> Any:
    """Return a value as JSON holds it: without NaN and infinity, which JSON has not."""
    if isinstance(value, Mapping):
        return {str(key): _known(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
