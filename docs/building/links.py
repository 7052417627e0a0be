"""Links of a page, rewritten for the site: pages of the repository become pages of the site, files become listings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
"""The checkout."""

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCED = re.compile(r"^(```|~~~).*?^\1[^\S\n]*$", re.MULTILINE | re.DOTALL)
COPIED = {".png", ".svg", ".css"}


@dataclass
class SiteMap:
    """Places of the repository's files in the site.

    Parameters
    ----------
    listed
        Files that some page links to and that are no pages: filled while links are rewritten.
    """

    listed: set[str] = field(default_factory=set)

    def place(self, file: str) -> str:
        """Return where a file of the repository stands in the site, both relative to their roots.

        >>> SiteMap().place("docs/howto/work.md"), SiteMap().place("benchmarks/live.md")
        ('howto/work.md', 'benchmarks/live.md')
        >>> SiteMap().place("examples/ddp_after.py"), SiteMap().place("examples/asyncio_coordinator")
        ('files/examples/ddp_after.py.md', 'files/examples/asyncio_coordinator.md')
        """
        path = PurePosixPath(file)
        if path.suffix in COPIED or path.suffix == ".md":
            return str(path.relative_to("docs")) if path.parts[0] == "docs" else file
        self.listed.add(file)
        return f"files/{file}.md"

    def rewritten(self, page: str, text: str) -> str:
        """Return a page's text with the links of the site; fenced code stays as it is."""
        here = str(PurePosixPath(self.place(page)).parent)
        return "".join(part if fenced else self._relinked(page, here, part) for part, fenced in parts(text))

    def _relinked(self, page: str, here: str, text: str) -> str:
        def site_link(match: re.Match[str]) -> str:
            file, mark, heading = match[2].partition("#")
            if "://" in match[2] or match[2].startswith("mailto:") or not file:
                return match[0]
            target = os.path.normpath(PurePosixPath(page).parent / file)
            if target.startswith("..") or not (ROOT / target).exists():
                raise FileNotFoundError(f"{page} links to {file}, which is no file of the repository: mend the link")
            return f"{match[1]}{os.path.relpath(self.place(target), here)}{mark}{heading}{match[3]}"

        return LINK.sub(site_link, text)


def parts(text: str) -> Iterator[tuple[str, bool]]:
    r"""Yield the parts of a page in order, and whether each is fenced code.

    >>> list(parts("a\n```\nb\n```\nc"))
    [('a\n', False), ('```\nb\n```', True), ('\nc', False)]
    """
    end = 0
    for match in FENCED.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def listing(file: str) -> str:
    """Return the page that shows a file of the repository, or a folder's files."""
    path = ROOT / file
    files = [path] if path.is_file() else sorted(one for one in path.iterdir() if one.is_file())
    blocks = [f"# {file}\n"]
    for one in files:
        if one.suffix not in {".py", ".toml", ".yml", ".md", ".txt", ".json"}:
            continue
        if one != path:
            blocks.append(f"## {one.name}\n")
        language = {".py": "python", ".md": "markdown"}.get(one.suffix, one.suffix[1:])
        blocks.append(f"`````{language}\n{one.read_text(encoding='utf-8').rstrip()}\n`````\n")
    return "\n".join(blocks)
