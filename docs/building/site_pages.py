"""The pages of the site: those of the repository, with the links of the site and with what the code knows.

Pages are those of ``docs/`` and ``benchmarks/``. What the code knows better than a writer is filled in here, at the
marks that pages have for it: commands and interfaces.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from commands import commands_page
from equations import with_equations
from interfaces import interface_page
from links import COPIED, ROOT, SiteMap, listing

PAGES = ROOT / "build" / "docs"
"""Where the finished pages are put, as mkdocs.yml names it."""

OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md")
"""Pages at the top of the repository that are pages of the site too."""

MARK = re.compile(r"^<!-- made by code: (\w+)(?: (.*?))? -->$", re.MULTILINE)
MAKERS: dict[str, Callable[[str], str]] = {
    "commands": lambda _: commands_page(),
    "interface": lambda modules: interface_page(modules.split()),
}
"""Makers of the text that a mark of a page stands for, by the name of the mark."""


def filled(text: str) -> str:
    """Return a page's text with what its marks stand for."""
    return MARK.sub(lambda match: MAKERS[match[1]](match[2] or ""), text)


def assembled(folder: Path = PAGES) -> list[str]:
    """Write all pages, pictures and styles of the site into a folder, and return the places of the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    site = SiteMap()
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / one for one in OTHERS)]
    for source in sorted(sources):
        page = str(source.relative_to(ROOT))
        text = site.rewritten(page, source.read_text(encoding="utf-8"))
        _write(folder / site.place(page), with_equations(filled(text)))
    for room in ("docs", "benchmarks"):
        for file in (ROOT / room).rglob("*"):
            if file.suffix in COPIED:
                _write(folder / site.place(str(file.relative_to(ROOT))), file.read_bytes())
    for file in sorted(site.listed):
        _write(folder / f"files/{file}.md", listing(file))
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.md"))]


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        path.write_bytes(content)
