"""Notebooks as pages of the site, and their run: ``make notebooks`` keeps what their cells print and draw."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"

NOTE = "This page is a notebook, with what its cells printed: [download it]({name}.ipynb), or open it in a clone."


def code(notebook: Path) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    return ["".join(cell["source"]) for cell in _cells(notebook) if cell["cell_type"] == "code"]


def printed(notebook: Path) -> str:
    """Return all that the cells printed when they were run last."""
    outputs = [output for cell in _cells(notebook) for output in cell.get("outputs", [])]
    return "".join("".join(one["text"]) for one in outputs if one["output_type"] == "stream")


def page(notebook: Path, relinked: Callable[[str], str]) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page in Markdown, its text relinked, and its pictures by the names of their files."""
    texts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(_cells(notebook)):
        source = "".join(cell["source"])
        texts.append(relinked(source) if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if number == 0:
            texts.append(NOTE.format(name=notebook.stem))  # this link is to the notebook itself, not to its page
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{number}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                texts.append(f"![Drawn by the cell above]({name})")
            else:
                shown = "".join(output.get("text", data.get("text/plain", "")))
                texts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(texts) + "\n", pictures


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return cells


def notebooks() -> Iterator[Path]:
    """Yield the notebooks in the order of their names."""
    yield from sorted(FOLDER.glob("*.ipynb"))


def main() -> None:
    """Run every notebook from its first cell, and keep what the cells print and draw."""
    import nbformat
    from nbclient import NotebookClient

    for path in notebooks():
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # the times of day at which it ran
        notebook.metadata.language_info = {"name": "python"}
        path.write_text(nbformat.writes(notebook) + "\n")
        print(f"{path.name}: {len(code(path))} cells ran")


if __name__ == "__main__":
    main()
