"""The page of the command line, from the commands themselves: what ``--help`` says, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import typer

from paceline.cli.main import app


@cache
def commands() -> dict[str, typer.core.TyperCommand]:
    """Return every command that does something, by the words that call it."""
    return dict(_leaves("paceline", typer.main.get_command(app)))


def _leaves(name: str, command: object) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, one in inner.items():
        yield from _leaves(f"{name} {word}", one)


def commands_page() -> str:
    """Return a section for every command: its usage, what it does, and a table of its options."""
    return "\n".join(_section(name, command) for name, command in commands().items())


def _section(name: str, command: typer.core.TyperCommand) -> str:
    words = [f"[{one.name}]" for one in command.params if one.param_type_name == "argument"]
    rows = [_row(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    head = f"### {name}\n\n```text\n{' '.join([name, '[OPTIONS]', *words])}\n```\n\n{_plain(command.help or '')}\n"
    if not rows:
        return head
    return "\n".join([head, "| option | meaning | default |", "| --- | --- | --- |", *rows, ""])


def _row(parameter: object) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.name]
    default = parameter.default() if callable(parameter.default) else parameter.default
    shown = "" if default in (None, "", (), []) or getattr(parameter, "is_flag", False) else f"`{_plain(str(default))}`"
    meaning = _plain(getattr(parameter, "help", None) or "")
    return f"| {', '.join(f'`{name}`' for name in names)} | {meaning} | {shown} |"


def _plain(text: str) -> str:
    """Return help as Markdown: paragraphs stay, bars would end a table's cell, and angles would be HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\\[", "[").strip()
