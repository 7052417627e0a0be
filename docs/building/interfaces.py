"""Pages of the interface: one directive of mkdocstrings for each name that a module lists in ``__all__``."""

from __future__ import annotations

import ast
from pathlib import Path

from links import ROOT

SOURCE = ROOT / "src"


def interface_page(modules: list[str]) -> str:
    """Return a section for each module, with its classes and functions from their docstrings.

    A name that an earlier module of the page documents is not repeated.
    """
    seen: set[str] = set()
    return "\n".join(_section(module, seen) for module in modules)


def _section(module: str, seen: set[str]) -> str:
    lines = [f"## `{module}`\n"]
    for name in names(module):
        if name not in seen:
            seen.add(name)
            lines.append(f"::: {module}.{name}\n    options:\n      heading_level: 3\n")
    return "\n".join(lines)


def names(module: str) -> list[str]:
    """Return the classes and functions that a module lists in ``__all__``, read from its source."""
    for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return sorted(name for name in ast.literal_eval(node.value) if _is_documented(module, name))
    raise ValueError(f"{_file(module)} has no __all__: list there what it offers, or take it off the page")


def _file(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    package = path / "__init__.py"
    return package if package.exists() else path.with_suffix(".py")


def _is_documented(module: str, name: str) -> bool:
    """Return whether a name is a class or a function: constants have no docstring of their own, modules no entry."""
    body = ast.parse(_file(module).read_text(encoding="utf-8")).body
    for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _is_documented(node.module, alias.name)
    return False
