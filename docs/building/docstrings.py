"""Extension of griffe that changes docstrings before they are shown; mkdocs.yml names it."""

from __future__ import annotations

from typing import Any

import griffe
from docstring_text import shown


class ShownDocstrings(griffe.Extension):
    """Gives short docstrings a heading for their examples, and shows roles of Sphinx as plain code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of anything that has one, as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
