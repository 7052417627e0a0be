"""Checks of a built site: every link leads to a file of it and to a heading, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
"""Attributes that make a browser fetch something while it shows the page."""


class Page(HTMLParser):
    """Links, fetched files and names of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.links, self.loaded, self.names = path, [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, loads or names."""
        given = dict(attrs)
        if given.get("id"):
            self.names.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADED and given.get(LOADED[tag]) and given.get("rel") != "canonical":
            self.loaded.append(given[LOADED[tag]])


def faults(site: Path) -> list[str]:
    """Return a sentence for each link that leads nowhere, and for each file that would be fetched from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for page in pages.values():
        shown = page.path.relative_to(site)
        foreign = [one for one in page.loaded if urlsplit(one).scheme in {"http", "https"} or one.startswith("//")]
        found += [f"{shown} loads {one} from another host" for one in foreign]
        for link in [*page.links, *(one for one in page.loaded if one not in foreign)]:
            wrong = _fault(page, link, site, pages)
            if wrong and shown.name != "404.html":
                found.append(f"{shown}: {wrong}")
    return found


def _fault(page: Page, link: str, site: Path, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or link.startswith("//"):
        return None
    target = Path(os.path.normpath(page.path.parent / unquote(parts.path))) if parts.path else page.path
    target = (target / "index.html" if target.is_dir() else target).resolve()
    if not target.exists() or site.resolve() not in target.parents:
        return f"the link {link} leads to no file of the site"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
        return f"the link {link} leads to no heading of the page"
    return None


def undocumented(pages: Path, site: Path) -> list[str]:
    """Return a sentence for each name whose documentation was asked for and is not there."""
    found = []
    for page in sorted(pages.rglob("*.md")):
        asked = re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if asked:
            built = Page(site / page.relative_to(pages).with_suffix(".html"))
            found += [f"{page.relative_to(pages)}: {name} was not found" for name in asked if name not in built.names]
    return found
