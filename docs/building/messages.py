"""The page of every error, warning and sentence, read from the source: nothing is run to find them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from links import ROOT

ROOMS = {
    "datasets": "Traces and formats",
    "predictors": "Predictors",
    "solver": "Splitting a batch",
    "recording": "Recording",
    "training": "Fitting, models",
    "coordinator": "Decisions",
    "eval": "Evaluation and replay",
    "runs": "Records of a run",
    "report": "Reports",
    "engines": "Engines",
    "audit": "The audit",
    "lab": "Jobs on this machine",
    "src/paceline": "The command line and the foundation",
}
"""Folders that are read, with the title of their section."""

WARNING_CALLS = {"warn", "warning", "error"}
SHORTEST = 12
"""Fewest characters of a template that are its own: shorter ones say nothing by themselves."""


@dataclass(frozen=True, order=True)
class Message:
    """One sentence that the library may say.

    Parameters
    ----------
    kind
        The class of the exception, ``warning``, or ``status`` for a member of an enumeration.
    template
        The sentence; what is filled in stands in braces.
    file, line
        Where it is said, relative to the checkout.
    """

    kind: str
    template: str
    file: str
    line: int


@cache
def messages() -> list[Message]:
    """Return all messages of the library, room by room and sentence by sentence."""
    return [one for room in ROOMS for one in sorted(set(_of_room(room)), key=lambda m: (m.template, m.file, m.line))]


def _of_room(room: str) -> Iterator[Message]:
    for path in sorted((ROOT / room).rglob("*.py")):
        if any(folder.is_symlink() for folder in path.parents):
            continue
        yield from _of_file(path)


def _of_file(path: Path) -> Iterator[Message]:
    file, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
    constants = dict(_constants(tree))
    for node in ast.walk(tree):
        for kind, text in _said(node, constants):
            if sum(len(piece) for piece in text.split("{")) >= SHORTEST:
                yield Message(kind, text, file, node.lineno)


def _constants(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the sentences that a file names, which it says elsewhere with ``NAME`` or ``NAME.format(...)``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, _templates(node.value, {})


def _said(node: ast.AST, constants: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the template of each sentence that a statement says."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        for text in _templates(node.exc.args[0], constants):
            yield _last_name(node.exc.func), text
    elif isinstance(node, ast.Call) and _last_name(node.func) in WARNING_CALLS:
        for argument in node.args[:2]:  # a listener is told first what the warning is about
            for text in _templates(argument, constants):
                if " " in text:
                    yield "warning", text
    elif isinstance(node, ast.ClassDef) and any(_last_name(base) == "Enum" for base in node.bases):
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                for text in _templates(statement.value, constants):
                    if " " in text:
                        yield "status", text


def _templates(node: ast.expr, constants: dict[str, list[str]]) -> list[str]:
    """Return the sentences that an expression may be: one for a text, two for a choice, none for a variable."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, [])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _templates(node.func.value, constants)
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(_piece(value) for value in node.values)]
    if isinstance(node, ast.IfExp):
        return _templates(node.body, constants) + _templates(node.orelse, constants)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        left, right = _templates(node.left, constants), _templates(node.right, constants)
        if isinstance(node.op, ast.Mod) or not right:
            return left
        return [one + other for one in left or ["{...}"] for other in right]
    return []


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    return "{" + _short(value.value) + "}"


def _short(expression: ast.expr) -> str:
    """Return the name of what is filled in, without the way to it."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    if isinstance(expression, ast.Name):
        return expression.id
    return "..."


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def messages_page() -> str:
    """Return a table of messages for each room."""
    every = messages()
    sections = []
    for room, title in ROOMS.items():
        rows = [
            f"| {_cell(one.template)} | {one.kind} | `{one.file}:{one.line}` |"
            for one in every
            if one.file.startswith(room + "/")
        ]
        if rows:
            sections += [f"### {title}\n", "| message | kind | said in |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(sections)


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    for sign in "`*_[]{}#$":
        plain = plain.replace(sign, "&#" + str(ord(sign)) + ";")
    return plain
